// Accepts the connections of a group's members and rejects all others.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>

#include "base/unique_fd.h"
#include "engine/comm/link.h"

namespace dsat::engine {

// The first bytes on every connection of a group.
struct Hello {
  static constexpr std::array<char, 8> kMagic{'d', 's', 'a', 't', 'g', 'r', 'p', '1'};
  enum class Purpose : int32_t { kJoin, kCollectives, kMessages };

  std::array<char, 8> magic = kMagic;
  uint64_t token = 0;  // Shows that the sender belongs to the group.
  Purpose purpose = Purpose::kJoin;
  int32_t size = 0;
  int32_t rank = 0;
  int32_t pid = 0;
  int32_t port = 0;  // kJoin: the port at which this rank listens.
  int32_t reserved = 0;
};

// Any process may connect. A connection that does not send a Hello within some seconds is closed
// and does not delay the others. Not thread-safe.
class Acceptor {
 public:
  // A connection. One that Next returns has sent its hello.
  struct Arrival {
    Link link;
    Hello hello;  // Has the magic number once it is complete; the caller checks the rest.
    std::chrono::steady_clock::time_point deadline;  // The hello must be complete then.
  };

  // `listener` is non-blocking.
  explicit Acceptor(UniqueFd listener) : listener_(std::move(listener)) {}

  // The next connection that has sent a complete hello; nullopt after the deadline. Throws if this
  // process cannot accept connections.
  std::optional<Arrival> Next(std::chrono::steady_clock::time_point deadline);

 private:
  void Accept();
  std::optional<Arrival> Listen();

  UniqueFd listener_;
  // The hellos of these are not complete. A list: links write to the hellos, which must not move.
  std::list<Arrival> pending_;
};

}  // namespace dsat::engine
