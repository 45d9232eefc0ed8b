// The error of a call that must fail.
#ifndef DSAT_TESTS_ENGINE_RUNTIME_ERROR_OF_H_
#define DSAT_TESTS_ENGINE_RUNTIME_ERROR_OF_H_

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace dsat::engine {

// What `fn` throws; a test failure if it throws nothing.
inline Error ErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::kUnknown, ""};
}

}  // namespace dsat::engine

#endif  // DSAT_TESTS_ENGINE_RUNTIME_ERROR_OF_H_
