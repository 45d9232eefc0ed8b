// The error that a function throws, for tests of refusals.
#ifndef DSAT_TESTS_BASE_ERROR_CODE_H_
#define DSAT_TESTS_BASE_ERROR_CODE_H_

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/error.h"

namespace dsat {

// The code of the Error that `work` throws, nullopt if it throws none; its message, which must be
// one line, is put into `message`.
template <typename Work>
std::optional<ErrorCode> CodeOf(const Work& work, std::string* message = nullptr) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    if (message) *message = error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.code();
  }
}

}  // namespace dsat

#endif  // DSAT_TESTS_BASE_ERROR_CODE_H_
