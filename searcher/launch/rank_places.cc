// The places of an attempt's ranks on its hosts, and the environment that follows from them.
#include "searcher/launch/rank_places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <random>

#include "base/error.h"
#include "base/rng.h"
#include "base/unique_fd.h"
#include "searcher/hosts/slots.h"

namespace dsat {
namespace {

// Below the ephemeral ports, which the kernel gives to any connection before the ranks listen, and
// above those of well-known services.
constexpr uint64_t kFirstPort = 15000;
constexpr uint64_t kNumPorts = 17000;

}  // namespace

std::vector<RankPlace> PlaceRanks(const LaunchRequest& request, int64_t num_ranks) {
  std::vector<RankPlace> places;
  std::map<int64_t, int64_t> size_of_host;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    RankPlace place;
    if (!request.slots.empty()) place.host = request.slots.at(static_cast<size_t>(rank)).host;
    place.local_rank = size_of_host[place.host]++;
    place.node = static_cast<int64_t>(size_of_host.size()) - 1;
    places.push_back(place);
  }
  for (RankPlace& place : places) {
    place.local_size = size_of_host[place.host];
    place.num_nodes = static_cast<int64_t>(size_of_host.size());
  }
  return places;
}

std::map<std::string, std::string> DeviceEnvironment(const LaunchRequest& request, int64_t host) {
  const LaunchHost& there = request.hosts[static_cast<size_t>(host)];
  const std::optional<std::vector<std::string>> own = VisibleDevices(there);
  std::vector<std::string> devices;
  for (const Slot& slot : request.slots) {
    if (slot.host != host) continue;
    const auto index = static_cast<size_t>(slot.index);
    if (own && index >= own->size()) return {};
    devices.push_back(own ? (*own)[index] : std::to_string(index));
  }
  if (devices.empty()) return {};
  return {{"CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(devices, ","))}};
}

std::string RandomToken() {
  std::array<unsigned char, 16> bytes;
  if (getentropy(bytes.data(), bytes.size()) != 0) ThrowErrno("getentropy", errno);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

int FreePort() {
  // A process takes each port once, since its attempts start at the same time.
  static std::atomic<uint64_t> next = std::random_device()();
  for (uint64_t tries = 0; tries < kNumPorts; ++tries) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(kFirstPort + next++ % kNumPorts));
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
      return ntohs(address.sin_port);
    if (errno != EADDRINUSE) break;
  }
  ThrowErrno("free port for MASTER_PORT", errno);
}

std::map<std::string, std::string> MasterEnvironment(const LaunchRequest& request) {
  const int64_t first = request.slots.at(0).host;
  const bool on_one =
      std::ranges::all_of(request.slots, [&](const Slot& slot) { return slot.host == first; });
  const std::string name = fmt::format("{}/{}/{}", request.token, request.trial, request.attempt);
  return {
      {"MASTER_ADDR", on_one ? "127.0.0.1" : request.hosts.at(static_cast<size_t>(first)).address},
      {"MASTER_PORT", std::to_string(kFirstPort + StableHash(name) % kNumPorts)}};
}

}  // namespace dsat
