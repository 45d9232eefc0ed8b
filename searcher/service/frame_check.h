// Limits of what a client of a gRPC server may send, at the level of HTTP/2's frames (RFC 9113).
//
// gRPC 1.51 bounds messages and metadata only once it has them: it keeps all of an unfinished
// header block, accepts any number of streams from a client that never acknowledges its settings,
// and works on every frame as fast as they come.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>

namespace dsat {

// The most that one connection may have: bytes of a frame's payload and of a header block, and
// calls at the same time.
inline constexpr uint32_t kMostFrameBytes = 16384;
inline constexpr int64_t kMostHeaderBytes = 16384;
inline constexpr int kMostCallsOfConnection = 32;

// Follows the frames of one connection. Bytes may be cut anywhere.
class FrameCheck {
 public:
  // Hears what the client sends. Returns false if that breaks a limit or does not begin as HTTP/2
  // does: the connection must end.
  bool FromClient(std::string_view bytes);
  // Hears what the server answers, which ends calls.
  void FromServer(std::string_view bytes);

  // The frames that the client has begun.
  int64_t num_frames() const { return num_frames_; }
  // The calls that the client has given up, and those that are open.
  int64_t num_resets() const { return num_resets_; }
  int64_t num_open() const { return std::ssize(open_); }
  // The calls that the server has answered.
  int64_t num_answered() const { return num_answered_; }
  // The bytes of messages whose end the client has not sent.
  int64_t unfinished_bytes() const { return unfinished_bytes_; }

 private:
  struct Frame {
    uint32_t size = 0;
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
  };
  // Finds the beginnings of frames in a stream of bytes.
  class Scanner {
   public:
    // Calls `use` with each frame that begins, until it returns false. Returns whether none did.
    template <typename Use>
    bool Scan(std::string_view bytes, const Use& use);

   private:
    std::array<unsigned char, 9> head_ = {};
    size_t num_head_ = 0;
    size_t rest_ = 0;  // Bytes of the payload that are still to come.
  };

  bool IsPreface(std::string_view* bytes);
  bool Allows(const Frame& frame);
  bool AllowsHeaders(const Frame& frame);
  bool Close(uint32_t stream);

  size_t num_preface_ = 0;
  Scanner from_client_, from_server_;
  int64_t num_frames_ = 0, num_resets_ = 0, num_answered_ = 0;
  bool in_block_ = false;
  int64_t block_bytes_ = 0;
  uint32_t newest_stream_ = 0;
  std::map<uint32_t, int64_t> open_;  // Calls, and the unfinished bytes of each.
  int64_t unfinished_bytes_ = 0;
};

}  // namespace dsat
