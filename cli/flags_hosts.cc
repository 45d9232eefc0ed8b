// The command line, parsed: which hosts trials run on.
#include "cli/flags_hosts.h"

#include "base/error.h"
#include "base/files.h"
#include "cli/flags_numbers.h"
#include "searcher/input/shell_words.h"

namespace dsat::cli {
namespace {

constexpr char kGroup[] = "Several hosts (docs/hosts.md)";
constexpr char kFilterType[] = "NAME[:SLOT,...][@NAME...]";

// Throws unless `ssh` is a command that takes further arguments.
void CheckSsh(const std::string& ssh) {
  try {
    const std::vector<std::string> words = SplitCommand(ssh);
    // What needs a shell would come back as one for `sh -c`, which drops what is put behind it.
    const bool needs_shell = words.size() == 3 && words[0] == "sh" && words[2] == ssh;
    if (!words.empty() && !words[0].empty() && !needs_shell) return;
  } catch (const Error& error) {
    Throw(ErrorCode::kInvalidArgument, "--ssh {}: {}", Printable(ssh), error.what());
  }
  Throw(ErrorCode::kInvalidArgument,
        "--ssh \"{}\": expected a command without variables, pipes and patterns, such as {}",
        Printable(ssh), kDefaultSsh);
}

}  // namespace

CLI::Option* AddHosts(CLI::App& app, HostFlags& hosts, FilterNames names) {
  const bool deepspeeds = names == FilterNames::kAndDeepSpeeds;
  CLI::Option* const hostfile =
      app.add_option("-H,--hostfile", hosts.hostfile, "Hosts, a line \"NAME slots=N\" each")
          ->type_name("FILE")
          ->check(CLI::Validator(
              [](const std::string& path) {
                return path.empty() ? std::string("expected the name of a file") : "";
              },
              ""))
          ->group(kGroup);
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->needs(hostfile)->group(kGroup);
  };
  add("--num_nodes,--num-nodes", hosts.filters.num_nodes, "The first so many hosts only")
      ->check(WholeNumberFrom1());
  add("--num_gpus,--num-gpus", hosts.filters.num_gpus, "The first so many slots of each host only")
      ->check(WholeNumberFrom1());
  add(deepspeeds ? "--include-hosts,--include" : "--include-hosts", hosts.filters.include,
      "These hosts and slots only, such as worker-0@worker-1:0,2")
      ->type_name(kFilterType);
  add(deepspeeds ? "--exclude-hosts,--exclude" : "--exclude-hosts", hosts.filters.exclude,
      "All hosts and slots but these")
      ->type_name(kFilterType);
  add("--ssh", hosts.ssh, "How to reach a host: the command that runs its arguments there")
      ->type_name("COMMAND")
      ->capture_default_str();
  add("--master_addr,--master-addr", hosts.master_addr,
      "Where ranks meet (default: the first host's own address)")
      ->type_name("ADDRESS");
  return hostfile;
}

void CheckHostFlags(const HostFlags& hosts) {
  ValidateFilters(hosts.filters);
  CheckSsh(hosts.ssh);
}

}  // namespace dsat::cli
