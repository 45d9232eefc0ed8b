// A launcher's command on each host of a hostfile or a job.
//
// The options are those of deepspeed/launcher/runner.py, torch/distributed/run.py and
// accelerate/commands/launch.py.
#include "searcher/scripts/node_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "searcher/command/command_words.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/hosts/hosts.h"
#include "searcher/launch/rank_places.h"

namespace dsat {
namespace {

using Argv = std::vector<std::string>;

// The arguments of the launcher on one host.
struct Node {
  std::string address, port, num_ranks;
  std::string hostfile = {},
              include = {};  // For deepspeed, which knows the hosts as node0, node1, ...
  std::string rank = {}, num_nodes = {}, num_local_ranks = {};
};

struct NodeOptions {
  Argv given;                                   // The options that the launcher gets.
  std::vector<std::string_view> values;         // The removed options that have values.
  std::vector<std::string_view> switches = {};  // The removed options that have none.
};

NodeOptions OptionsOf(const std::string& launcher, const Node& node) {
  if (launcher == "deepspeed") {
    return {
        .given = {"--no_ssh", "--hostfile", node.hostfile, "--include", node.include, "--node_rank",
                  node.rank, "--master_addr", node.address, "--master_port", node.port},
        .values = {"--hostfile", "-H", "--include", "-i", "--exclude", "-e", "--num_nodes",
                   "--num_gpus", "--num_accelerators", "--node_rank", "--master_addr",
                   "--master_port", "--launcher", "--launcher_args", "--ssh_port"},
        .switches = {"--no_ssh", "--no_ssh_check", "--force_multi"}};
  }
  if (launcher == "torchrun") {
    return {
        .given = {"--nnodes", node.num_nodes, "--node_rank", node.rank, "--nproc_per_node",
                  node.num_local_ranks, "--master_addr", node.address, "--master_port", node.port},
        .values = {"--nnodes", "--node_rank", "--nproc_per_node", "--master_addr", "--master_port",
                   "--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--local_addr"},
        .switches = {"--standalone"}};
  }
  DSAT_CHECK(launcher == "accelerate", "{}", launcher);
  return {.given = {"--num_machines", node.num_nodes, "--machine_rank", node.rank,
                    "--num_processes", node.num_ranks, "--main_process_ip", node.address,
                    "--main_process_port", node.port, "--deepspeed_multinode_launcher", "standard"},
          .values = {"--num_machines", "--machine_rank", "--num_processes", "--main_process_ip",
                     "--main_process_port", "--rdzv_backend", "--deepspeed_multinode_launcher",
                     "--deepspeed_hostfile", "--deepspeed_inclusion_filter",
                     "--deepspeed_exclusion_filter"}};
}

Argv ArgvOnNode(const Argv& argv, const Node& node) {
  CommandWords command(argv);
  const std::optional<RankLauncher> launcher = FindRankLauncher(command);
  DSAT_CHECK(launcher);
  const NodeOptions options = OptionsOf(launcher->name, node);
  for (size_t i = launcher->args_begin; i < launcher->args_end; ++i) {
    const std::string word = WithUnderscores(command.words()[i].text);
    if (std::ranges::find(options.switches, word) != options.switches.end())
      command.Remove(i, i + 1);
    for (const std::string_view flag : options.values) {
      if (const auto value = ValueOfFlag(command, i, flag)) command.Remove(i, value->index + 1);
    }
  }
  command.InsertBehind(launcher->args_begin - 1, options.given);
  return command.Changed();
}

// The devices of the ranks on a host, such as "2,3".
std::string DevicesOn(const LaunchRequest& request, const RankPlace& place) {
  const auto pinned = DeviceEnvironment(request, place.host);
  if (!pinned.empty()) return pinned.begin()->second;
  std::string devices = "0";
  for (int64_t device = 1; device < place.local_size; ++device)
    devices += fmt::format(",{}", device);
  return devices;
}

}  // namespace

std::vector<Argv> ArgvOfHosts(const Argv& argv, const LaunchRequest& request,
                              const std::string& hostfile) {
  const auto meeting = MasterEnvironment(request);
  Node node = {.address = meeting.at("MASTER_ADDR"),
               .port = meeting.at("MASTER_PORT"),
               .num_ranks = std::to_string(request.slots.size()),
               .hostfile = hostfile};
  std::vector<RankPlace> firsts = PlaceRanks(request, std::ssize(request.slots));
  std::erase_if(firsts, [](const RankPlace& place) { return place.local_rank > 0; });
  std::string lines;
  for (const RankPlace& place : firsts) {
    node.include += fmt::format("{}node{}:{}", place.node > 0 ? "@" : "", place.node,
                                DevicesOn(request, place));
    // The filter chooses among them.
    lines += fmt::format("node{} slots={}\n", place.node, kMostSlotsOfHost);
  }
  WriteFileAtomic(hostfile, lines, /*waits_for_disk=*/false);
  std::vector<Argv> argvs;
  for (const RankPlace& place : firsts) {
    node.rank = std::to_string(place.node);
    node.num_nodes = std::to_string(place.num_nodes);
    node.num_local_ranks = std::to_string(place.local_size);
    argvs.push_back(ArgvOnNode(argv, node));
  }
  return argvs;
}

}  // namespace dsat
