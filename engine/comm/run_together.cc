// Sends the message of a failed rank as scalars, which every group has, whatever its memory.
#include "engine/comm/run_together.h"

#include <exception>

#include "base/error.h"

namespace dsat::engine {
namespace {

constexpr size_t kLongestMessage = 600;

std::string MessageOf(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, kLongestMessage);
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

std::string TextOfRank(ProcessGroup& group, int root, const std::string& text) {
  const std::string own = group.rank() == root ? text : "";
  const auto length = static_cast<size_t>(group.MaxScalar(static_cast<double>(own.size())));
  std::string message;  // A byte at a time: texts are short, and failures are rare.
  for (size_t i = 0; i < length; ++i) {
    const int byte = i < own.size() ? static_cast<unsigned char>(own[i]) : 0;
    message += static_cast<char>(static_cast<int>(group.MaxScalar(byte)));
  }
  return message;
}

void RunTogether(ProcessGroup& group, const char* what, const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    const int failed = static_cast<int>(group.MaxScalar(failure ? group.rank() + 1 : 0)) - 1;
    if (failed < 0) return;
    const std::string own = group.rank() == failed ? MessageOf(failure) : "";
    const std::string message = TextOfRank(group, failed, own);
    if (!failure) Throw(ErrorCode::kAborted, "{}: rank {}: {}", what, failed, message);
  } catch (...) {
    if (!failure) throw;  // This rank's own failure says more than that of the group.
  }
  std::rethrow_exception(failure);
}

}  // namespace dsat::engine
