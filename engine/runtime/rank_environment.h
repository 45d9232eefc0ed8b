// Reads what a launcher tells a rank, and joins the group of the ranks.
#pragma once

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
  int group_fd = -1;  // -1: none was given, which is legal for the only rank of a host.
  // For ranks on several hosts: the address of the rendezvous ("" and 0 if not given), and the
  // secret that all ranks share.
  std::string master_address;
  int master_port = 0;
  std::string key;
};

// Reads RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as torch's launchers set them, and
// DSAT_NUM_THREADS and DSAT_GROUP_FD (rank_variables.h). Without them there is one rank with one
// thread. If some ranks are on other hosts, it also reads MASTER_ADDR and MASTER_PORT, and the key
// from DSAT_TOKEN. Throws kInvalidArgument naming the variable and its value.
RankEnvironment ReadRankEnvironment();

// Joins the group of all ranks: through the memory file if all are on one host, else through the
// master's address. Returns when all ranks have joined. Throws as MakeShmGroup and MakeTcpGroup,
// and kInvalidArgument naming the variable of the file or the address if it is not set.
std::unique_ptr<ProcessGroup> JoinGroup(const RankEnvironment& environment);

}  // namespace dsat::engine
