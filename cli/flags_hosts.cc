// The options that choose the hosts on which trials run.
#include "base/error.h"
#include "base/files.h"
#include "cli/flags_parser.h"
#include "searcher/command/command_words.h"
#include "searcher/hosts/slurm.h"

namespace dsat::cli {
namespace {

constexpr char kGroup[] = "Several hosts (docs/hosts.md)";
constexpr char kSlurmGroup[] = "Slurm (docs/hosts.md)";

// Throws if further arguments cannot be appended to the command `ssh`.
void CheckSsh(const std::string& ssh) {
  try {
    const std::vector<std::string> words = SplitCommand(ssh);
    // A command that needs a shell is split into `sh -c` and its text, which ignores further
    // arguments.
    const bool needs_shell = words.size() == 3 && words[0] == "sh" && words[2] == ssh;
    if (!words.empty() && !words[0].empty() && !needs_shell) return;
  } catch (const Error& error) {
    Throw(ErrorCode::kInvalidArgument, "--ssh {}: {}", Printable(ssh), error.what());
  }
  Throw(ErrorCode::kInvalidArgument,
        "--ssh \"{}\": expected a command without variables, pipes and patterns, such as {}",
        Printable(ssh), kDefaultSsh);
}

void AddSlurm(CLI::App& app, HostFlags& hosts, CLI::Option* hostfile) {
  CLI::Option* const launcher =
      TakeOneOf(Add(app, "--launcher", hosts.launcher,
                    "Run trials as jobs of Slurm or, inside of a job, as its steps"),
                {"slurm"})
          ->excludes(hostfile)
          ->group(kSlurmGroup);
  Add(app, "--slurm-args OPTIONS", hosts.slurm_args,
      "Options of salloc for each job, such as \"--partition=gpu --time=1:00:00\"")
      ->needs(launcher)
      ->group(kSlurmGroup);
  AddPositive(app, "--slurm-slots-per-node", hosts.slurm_slots_per_node,
              "The most slots of a trial on a node (default: all; inside of a job, the GPUs or "
              "else the tasks that it has there)")
      ->needs(launcher)
      ->group(kSlurmGroup);
}

}  // namespace

CLI::Option* AddHosts(CLI::App& app, HostFlags& hosts, FilterNames names) {
  const bool deepspeeds = names == FilterNames::kAndDeepSpeeds;
  CLI::Option* const hostfile = Add(app, "-H,--hostfile FILE", hosts.hostfile,
                                    "File of hosts, one line \"NAME slots=N\" for each")
                                    ->group(kGroup);
  const std::string of_filter = " NAME[:SLOT,...][@NAME...]";
  const std::vector<CLI::Option*> others = {
      AddPositive(app, "--num_nodes,--num-nodes", hosts.filters.num_nodes,
                  "Use only the first N hosts (default: all)"),
      AddPositive(app, "--num_gpus,--num-gpus", hosts.filters.num_gpus,
                  "Use only the first N slots of each host (default: all)"),
      Add(app, (deepspeeds ? "--include-hosts,--include" : "--include-hosts") + of_filter,
          hosts.filters.include, "Use only these hosts and slots, such as worker-0@worker-1:0,2"),
      Add(app, (deepspeeds ? "--exclude-hosts,--exclude" : "--exclude-hosts") + of_filter,
          hosts.filters.exclude, "Use all hosts and slots except these"),
      Add(app, "--ssh COMMAND", hosts.ssh, "Command that runs its arguments on a host"),
      Add(app, "--master_addr,--master-addr ADDRESS", hosts.master_addr,
          "Address of the ranks' rendezvous (default: the first host's own)")};
  for (CLI::Option* const option : others)
    option->needs(hostfile)->group(kGroup);
  AddSlurm(app, hosts, hostfile);
  return hostfile;
}

void CheckHostFlags(const HostFlags& hosts) {
  ValidateFilters(hosts.filters);
  CheckSsh(hosts.ssh);
  SplitSlurmArgs(hosts.slurm_args);
}

}  // namespace dsat::cli
