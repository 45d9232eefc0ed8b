// Checks of options, and the options of several commands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "cli/flags_parser.h"
#include "searcher/command/command_words.h"
#include "searcher/hosts/slurm.h"

namespace dsat::cli {
namespace {

std::string Refusal(const std::string& text, const std::string& expected) {
  return fmt::format("{}; expected {}", text.empty() ? "nothing" : Printable(text), expected);
}

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

CLI::Option* TakeOneOf(CLI::Option* option, const std::vector<std::string>& words) {
  const auto check = [words](const std::string& text) -> std::string {
    if (std::ranges::find(words, text) != words.end()) return "";
    const std::string nearest = NearestWord(text, words);
    return Refusal(text, fmt::format("{}{}", fmt::join(words, ", "),
                                     nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  };
  return option->type_name(fmt::format("{}", fmt::join(words, "|")))->check(check, "");
}

CLI::Validator WholeNumber(bool positive) {
  // Seconds, steps or ranks: sums and products of a few do not overflow.
  constexpr int64_t kMostCounted = 1'000'000'000;
  const int64_t least = positive ? 1 : 0;
  const int64_t most = positive ? kMostCounted : std::numeric_limits<int64_t>::max();
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        int64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, number);
        // CLI11 would read 010 as 8.
        const bool octal = text.size() > 1 && text[0] == '0';
        if (error == std::errc() && stop == end && !octal && number >= least && number <= most)
          return "";
        const bool too_large = error == std::errc::result_out_of_range || number > most;
        return Refusal(text, too_large ? fmt::format("a whole number up to {}", most)
                                       : fmt::format("a whole number of {} or more", least));
      },
      "");
}

CLI::Validator Number(bool positive) {
  return CLI::Validator(
      [positive](std::string& text) -> std::string {
        double number = 0;
        const bool read = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
        if (read && (positive ? number > 0 : number >= 0)) return "";
        return Refusal(text, positive ? "a number above 0" : "a number of 0 or more");
      },
      "");
}

CLI::Validator Duration() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const char unit = text.empty() ? '\0' : text.back();
        const double factor = unit == 'h' ? 3600 : unit == 'm' ? 60 : 1;
        const bool has_unit = unit == 'h' || unit == 'm' || unit == 's';
        double number = 0;
        const bool read =
            CLI::detail::lexical_cast(text.substr(0, text.size() - (has_unit ? 1 : 0)), number);
        if (!read || !std::isfinite(number) || number <= 0)
          return Refusal(text, "a duration above 0 such as 90s, 10m or 2h");
        text = fmt::format("{}", number * factor);
        return "";
      },
      "");
}

void AddConfig(CLI::App& app, std::string& config, std::string& model_dir) {
  Add(app, "config CONFIG.yaml", config, "Experiment file (docs/experiment-file.md)")->required();
  Add(app, "model_dir MODEL_DIR", model_dir,
      "Base folder of relative paths and of the command (default: the file's folder)");
}

void AddTimeouts(CLI::App& app, RunFlags& run) {
  AddPositive(app, "--hang-timeout SECONDS", run.hang_timeout_s,
              "Kill a run after this time without a step");
  AddPositive(app, "--start-timeout SECONDS", run.start_timeout_s,
              "Kill a run that has not reported anything after this time");
}

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
