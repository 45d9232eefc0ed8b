// Errors and checks.
//
// There are three kinds of failure. The outcome of a trial (out of memory, a crash) is a value
// (proto/trial.h). A failure of the environment or of the input is an `Error`, which is thrown and
// caught in a few places such as main(). A bug in dsat is a failed DSAT_CHECK, which aborts.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace dsat {

// gRPC's canonical codes, so that an error is sent by a cast.
enum class ErrorCode : int {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// `text`, in which each word of more than 500 characters, such as a pasted value, is cut to its
// beginning.
std::string WithShortWords(const std::string& text);

// The message is one line: what was tried, what went wrong, what was expected. It names the file,
// the key, the value and the allowed range. Its words are short (WithShortWords).
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error with a formatted message: Throw(kNotFound, "{}: no such file", path).
template <typename... Args>
[[noreturn]] void Throw(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Throws the Error for a failed system call: "<what>: <strerror(errno_value)>".
[[noreturn]] void ThrowErrno(const std::string& what, int errno_value);

// The text that a user reads about an exception. The texts of the standard library say too little,
// such as which file it was, or that a thread could not be started.
std::string MessageOf(const std::exception& error);

// Prints the condition, its source location and `message`, then aborts.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line,
                              const std::string& message);

}  // namespace dsat

// DSAT_CHECK(cond) or DSAT_CHECK(cond, "format {}", value): if `cond` is false, dsat has a bug.
#define DSAT_CHECK(condition, ...)                                                      \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::dsat::CheckFailed(#condition, __FILE__, __LINE__, fmt::format("" __VA_ARGS__)); \
  } while (false)
