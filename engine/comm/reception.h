// Who comes to a listening socket, told from strangers.
#ifndef DSAT_ENGINE_COMM_RECEPTION_H_
#define DSAT_ENGINE_COMM_RECEPTION_H_

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
  uint64_t proof = 0;  // That who comes belongs to the group.
  Purpose purpose = Purpose::kJoin;
  int32_t size = 0;
  int32_t rank = 0;
  int32_t pid = 0;
  int32_t port = 0;  // Of kJoin: where this rank listens for the others.
  int32_t reserved = 0;
};

// Anybody may connect: who says something else, or nothing for some seconds, is sent away and keeps
// nobody waiting. Not thread-safe.
class Reception {
 public:
  struct Arrival {
    UniqueFd fd;
    Hello hello;  // With the magic; the rest is for the caller to check.
  };

  // `listener` does not block.
  explicit Reception(UniqueFd listener) : listener_(std::move(listener)) {}

  // The next who has said a whole hello; nullopt after the deadline. Throws if this process cannot
  // accept connections.
  std::optional<Arrival> Next(std::chrono::steady_clock::time_point deadline);

 private:
  struct Guest {
    Link link;
    Hello hello;
    std::chrono::steady_clock::time_point deadline;
  };

  void Accept();
  std::optional<Arrival> Listen();

  UniqueFd listener_;
  std::list<Guest> guests_;  // Which stay where they are: their links write to their hellos.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_RECEPTION_H_
