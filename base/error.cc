// Errors and checks.
#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

namespace dsat {
namespace {

ErrorCode CodeFromErrno(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case EEXIST:
      return ErrorCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kUnavailable;
  }
}

constexpr size_t kLongestWord = 500;
constexpr size_t kKept = 100;

bool ContinuesCharacter(char c) {  // In UTF-8.
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string WithShortWords(const std::string& text) {
  if (text.size() <= kLongestWord) return text;
  std::string shorter;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    size_t kept = end - begin;
    if (kept > kLongestWord) {
      for (kept = kKept; kept > 0 && ContinuesCharacter(text[begin + kept]);)
        --kept;
    }
    shorter += text.substr(begin, kept);
    if (begin + kept < end) shorter += fmt::format("... ({} bytes)", end - begin);
    if (end < text.size()) shorter += text[end];
    begin = end + 1;
  }
  return shorter;
}

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(WithShortWords(message)), code_(code) {}

void ThrowErrno(const std::string& what, int errno_value) {
  throw Error(CodeFromErrno(errno_value), what + ": " + std::strerror(errno_value));
}

std::string MessageOf(const std::exception& error) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string path = file->path1().string();  // None: it asked for the current folder.
    return WithShortWords(
        fmt::format("{}: {}", path.empty() ? "the current folder" : path, file->code().message()));
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format("cannot start a thread: {}; allow more processes (ulimit -u) and memory",
                       system->code().message());
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return error.what();
}

void CheckFailed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace dsat
