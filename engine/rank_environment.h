// What a launcher tells a rank, and the group that the ranks join.
#ifndef DSAT_ENGINE_RANK_ENVIRONMENT_H_
#define DSAT_ENGINE_RANK_ENVIRONMENT_H_

#include <memory>

#include "engine/comm/process_group.h"

namespace dsat::engine {

struct RankEnvironment {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int num_threads = 1;
  int group_fd = -1;  // -1: none was given, which only a single rank may be.
};

// From RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as torch's launchers set them,
// DSAT_NUM_THREADS and DSAT_GROUP_FD (proto/trial_task.h); without them, one rank of one thread.
// Throws
// kInvalidArgument naming the variable and its value.
RankEnvironment ReadRankEnvironment();

// The group of all ranks of the environment. Returns when all have come. Throws as MakeShmGroup,
// kInvalidArgument if several ranks were given no memory file to meet in.
std::unique_ptr<ProcessGroup> JoinGroup(const RankEnvironment& environment);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RANK_ENVIRONMENT_H_
