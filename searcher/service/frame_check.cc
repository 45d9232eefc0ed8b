// Limits of what a client of a gRPC server may send, at the level of HTTP/2's frames.
#include "searcher/service/frame_check.h"

#include <algorithm>

namespace dsat {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kContinuation = 9;  // Types of frames.
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;                         // Flags.

}  // namespace

template <typename Use>
bool FrameCheck::Scanner::Scan(std::string_view bytes, const Use& use) {
  while (!bytes.empty()) {
    if (rest_ > 0) {
      const size_t skipped = std::min(rest_, bytes.size());
      rest_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    head_[num_head_++] = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    if (num_head_ < head_.size()) continue;
    num_head_ = 0;
    const Frame frame = {.size = uint32_t{head_[0]} << 16 | uint32_t{head_[1]} << 8 | head_[2],
                         .type = head_[3],
                         .flags = head_[4],
                         .stream = (uint32_t{head_[5]} << 24 | uint32_t{head_[6]} << 16 |
                                    uint32_t{head_[7]} << 8 | head_[8]) &
                                   0x7fffffff};
    rest_ = frame.size;
    if (!use(frame)) return false;
  }
  return true;
}

bool FrameCheck::FromClient(std::string_view bytes) {
  return IsPreface(&bytes) &&
         from_client_.Scan(bytes, [this](const Frame& frame) { return Allows(frame); });
}

// Takes the connection preface from the beginning of `bytes`.
bool FrameCheck::IsPreface(std::string_view* bytes) {
  const std::string_view begin = bytes->substr(0, kPreface.size() - num_preface_);
  if (!kPreface.substr(num_preface_).starts_with(begin)) return false;
  num_preface_ += begin.size();
  bytes->remove_prefix(begin.size());
  return true;
}

bool FrameCheck::Allows(const Frame& frame) {
  ++num_frames_;
  if (frame.size > kMostFrameBytes) return false;
  if (in_block_ || frame.type == kHeaders) return AllowsHeaders(frame);
  if (frame.type == kReset) {
    ++num_resets_;
    Close(frame.stream);
  }
  if (frame.type != kData) return true;
  const auto call = open_.find(frame.stream);
  if (call == open_.end()) return true;
  const bool ends = (frame.flags & kEndStream) != 0;
  const int64_t added = ends ? -call->second : int64_t{frame.size};
  call->second += added;
  unfinished_bytes_ += added;
  return true;
}

// Nothing may come between the frames of a header block.
bool FrameCheck::AllowsHeaders(const Frame& frame) {
  if (in_block_ != (frame.type == kContinuation)) return false;
  block_bytes_ = (in_block_ ? block_bytes_ : 0) + frame.size;
  if (block_bytes_ > kMostHeaderBytes) return false;
  in_block_ = (frame.flags & kEndHeaders) == 0;
  if (frame.type != kHeaders || frame.stream <= newest_stream_) return true;
  newest_stream_ = frame.stream;
  open_.emplace(frame.stream, 0);
  return open_.size() <= kMostCallsOfConnection;
}

void FrameCheck::FromServer(std::string_view bytes) {
  from_server_.Scan(bytes, [this](const Frame& frame) {
    const bool has_end = frame.type == kData || frame.type == kHeaders;
    const bool ends = has_end && (frame.flags & kEndStream) != 0;
    if ((ends || frame.type == kReset) && Close(frame.stream) && ends) ++num_answered_;
    return true;
  });
}

// Returns whether the call was open.
bool FrameCheck::Close(uint32_t stream) {
  const auto call = open_.find(stream);
  if (call == open_.end()) return false;
  unfinished_bytes_ -= call->second;
  open_.erase(call);
  return true;
}

}  // namespace dsat
