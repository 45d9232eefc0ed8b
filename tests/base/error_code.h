// The error that a function throws, for tests of refusals.
#pragma once

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

// The Error that `work` throws; a test failure if it throws none.
template <typename Work>
Error ErrorOf(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::kUnknown, ""};
}

// The message of the Error that `work` throws, which must be one line and have this code; "" if it
// throws none, which is no failure here: match the result.
template <typename Work>
std::string RefusalOf(const Work& work, ErrorCode code = ErrorCode::kInvalidArgument) {
  std::string message;
  const std::optional<ErrorCode> thrown = CodeOf(work, &message);
  EXPECT_TRUE(!thrown || thrown == code) << message;
  return message;
}

}  // namespace dsat
