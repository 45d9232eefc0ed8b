// Reads what a launcher tells a rank, and joins the group of the ranks.
#include "engine/runtime/rank_environment.h"

#include <chrono>
#include <climits>
#include <cstdlib>

#include "base/error.h"
#include "base/parse_number.h"
#include "engine/runtime/rank_variables.h"

namespace dsat::engine {
namespace {

// Collectives wait for the slowest rank; one that has ended is noticed at once.
constexpr std::chrono::minutes kPeerTimeout{5};
constexpr char kEnvMasterAddress[] = "MASTER_ADDR";
constexpr char kEnvMasterPort[] = "MASTER_PORT";
static_assert(kMostRanksOfHost <= kMaxShmRanks);

int EnvInt(const char* name, int default_value, int min, int max = INT_MAX) {
  const char* text = std::getenv(name);
  if (text == nullptr) return default_value;
  const std::optional<int> value = ParseNumber<int>(text);
  if (!value || *value < min || *value > max) {
    Throw(ErrorCode::kInvalidArgument, "{} is \"{}\"; expected a whole number from {}{}", name,
          text, min, max == INT_MAX ? "" : fmt::format(" to {}", max));
  }
  return *value;
}

std::string EnvText(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

bool HasSeveralHosts(const RankEnvironment& environment) {
  return environment.local_world_size < environment.world_size;
}

std::unique_ptr<ProcessGroup> MeetOtherHosts(const RankEnvironment& environment) {
  const bool has_address = !environment.master_address.empty();
  if (!has_address || environment.master_port == 0) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is not set; expected where rank 0 is, as {} of {} ranks are on this host",
          has_address ? kEnvMasterPort : kEnvMasterAddress, environment.local_world_size,
          environment.world_size);
  }
  return MakeTcpGroup({.rank = environment.rank,
                       .size = environment.world_size,
                       .master_address = environment.master_address,
                       .master_port = environment.master_port,
                       .key = environment.key,
                       .timeout = kPeerTimeout});
}

}  // namespace

RankEnvironment ReadRankEnvironment() {
  RankEnvironment environment;
  environment.world_size = EnvInt("WORLD_SIZE", 1, 1);
  environment.rank = EnvInt("RANK", 0, 0);
  environment.local_rank = EnvInt("LOCAL_RANK", environment.rank, 0);
  environment.local_world_size = EnvInt("LOCAL_WORLD_SIZE", environment.world_size, 1);
  if (!HasSeveralHosts(environment) && environment.world_size > kMostRanksOfHost) {
    Throw(ErrorCode::kInvalidArgument, "WORLD_SIZE is {}; expected at most {} ranks on one host",
          environment.world_size, kMostRanksOfHost);
  }
  environment.num_threads = EnvInt(kEnvNumThreads, 1, 1);
  environment.group_fd = EnvInt(kEnvGroupFd, -1, 0);
  if (HasSeveralHosts(environment)) {
    environment.master_address = EnvText(kEnvMasterAddress);
    environment.master_port = EnvInt(kEnvMasterPort, 0, 1, 65535);
    environment.key = EnvText(kEnvToken);
  }
  if (environment.rank >= environment.world_size) {
    Throw(ErrorCode::kInvalidArgument, "RANK is {}; expected less than WORLD_SIZE, {}",
          environment.rank, environment.world_size);
  }
  return environment;
}

std::unique_ptr<ProcessGroup> JoinGroup(const RankEnvironment& environment) {
  if (HasSeveralHosts(environment)) return MeetOtherHosts(environment);
  if (environment.group_fd < 0 && environment.world_size != 1) {
    Throw(ErrorCode::kInvalidArgument, "{} is not set; expected the memory file of {} ranks",
          kEnvGroupFd, environment.world_size);
  }
  return MakeShmGroup(environment.group_fd, environment.rank, environment.world_size, kPeerTimeout);
}

}  // namespace dsat::engine
