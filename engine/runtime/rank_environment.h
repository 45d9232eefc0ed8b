// What a launcher tells a rank, and the group that the ranks join.
#ifndef DSAT_ENGINE_RUNTIME_RANK_ENVIRONMENT_H_
#define DSAT_ENGINE_RUNTIME_RANK_ENVIRONMENT_H_

#include <memory>
#include <string>

#include "engine/comm/process_group.h"

namespace dsat::engine {

struct RankEnvironment {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int num_threads = 1;
  int group_fd = -1;  // -1: none was given, which only a single rank of a host may be.
  // Of ranks on several hosts: where they meet ("" and 0: not given), and what shows who belongs.
  std::string master_address;
  int master_port = 0;
  std::string key;
};

// From RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as torch's launchers set them,
// DSAT_NUM_THREADS and DSAT_GROUP_FD (rank_variables.h); without them, one rank of one thread. If
// there are more ranks than on this host, also from MASTER_ADDR and MASTER_PORT, and the key from
// DSAT_TOKEN. Throws kInvalidArgument naming the variable and its value.
RankEnvironment ReadRankEnvironment();

// The group of all ranks of the environment: of one host, in its memory file; of several, at the
// master's address. Returns when all have come. Throws as MakeShmGroup and MakeTcpGroup;
// kInvalidArgument naming the variable that says where to meet, if it was not given.
std::unique_ptr<ProcessGroup> JoinGroup(const RankEnvironment& environment);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_RANK_ENVIRONMENT_H_
