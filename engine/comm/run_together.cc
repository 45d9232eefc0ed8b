// Sends the message of a failed rank as scalars, which every group has, whatever its memory.
#include "engine/comm/run_together.h"

#include <algorithm>

#include "base/error.h"

namespace dsat::engine {
namespace {

constexpr size_t kLongestMessage = 600;
constexpr size_t kBytesPerScalar = 6;  // A double counts to 2^53.

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
  std::string message;
  for (size_t begin = 0; begin < length; begin += kBytesPerScalar) {
    int64_t packed = 0;
    for (size_t i = begin; i < std::min(begin + kBytesPerScalar, own.size()); ++i)
      packed |= int64_t{static_cast<unsigned char>(own[i])} << (8 * (i - begin));
    const auto received = static_cast<int64_t>(group.MaxScalar(static_cast<double>(packed)));
    for (size_t i = begin; i < std::min(begin + kBytesPerScalar, length); ++i)
      message += static_cast<char>(received >> (8 * (i - begin)) & 0xFF);
  }
  return message;
}

void TellOtherRanks(ProcessGroup& group, const char* what, const std::exception_ptr& failure,
                    int last_failed) {
  const std::string own = group.rank() == last_failed ? MessageOf(failure) : "";
  const std::string message = TextOfRank(group, last_failed, own);
  if (!failure) Throw(ErrorCode::kAborted, "{}: rank {}: {}", what, last_failed, message);
}

}  // namespace dsat::engine
