// Slurm's view of trials, through its commands srun and scontrol.
#include "searcher/hosts/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/regex.h"
#include "searcher/command/command_words.h"
#include "searcher/hosts/slots.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/host_address.h"

namespace dsat {
namespace {

constexpr char kNodesMark[] = "dsat-nodes";  // As kPrintNodes prints it.

// Slurm's commands read options from these variables, which a job sets for itself and not for its
// steps, such as SLURM_NTASKS and SLURM_GPUS_PER_TASK.
constexpr char kForgetJob[] = R"(unset $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p' |)"
                              R"( grep -vx 'SLURM_CONF\|SLURM_JWT'); )";
// srun reads from SLURM_PARTITION and the like what salloc reads from SALLOC_PARTITION.
constexpr char kTakeSallocs[] =
    "for name in ACCOUNT CONSTRAINT GRES PARTITION QOS RESERVATION TIMELIMIT; do"
    R"( eval "[ -z \"\${SALLOC_$name}\" ] || export SLURM_$name=\"\$SALLOC_$name\""; done; )";
// The step has one task, but its ranks are not that task: libraries would take its numbers for
// theirs.
constexpr char kForgetTask[] =
    "unset SLURM_NTASKS SLURM_NPROCS SLURM_PROCID SLURM_LOCALID SLURM_NODEID; eval \"$0\"";

// The runner serves other trials meanwhile, so that an answer may not take longer.
constexpr int kAnswerSeconds = 20;
constexpr int kTimedOut = 124;  // The status of timeout(1) then.
constexpr int kNotRun = 127;    // The status of a shell that lacks the program, or of no shell.

// A shell command's output with its errors.
ShellAnswer Ask(const std::string& command) {
  return RunShell(
      fmt::format("timeout {} sh -c {} 2>&1 </dev/null", kAnswerSeconds, ShellWord(command)));
}

// The text after the first `key` in `text`, up to a blank; "" if there is none.
std::string ValueOf(const std::string& text, const std::string& key) {
  const size_t found = text.find(key);
  if (found == std::string::npos) return "";
  const size_t begin = found + key.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

// The first `most` numbers of tasks in "4(x2),1"; empty if `text` is something else.
std::vector<int64_t> TasksOf(const std::string& text, size_t most) {
  std::vector<int64_t> tasks;
  if (text.find_first_not_of("0123456789(x),") != std::string::npos) return tasks;
  static const RE2 kPart(R"((\d{1,9})(?:\(x(\d{1,6})\))?(?:,|$))", RegexOptions());
  re2::StringPiece rest(text);
  int64_t count = 0;
  for (std::string repeats; RE2::FindAndConsume(&rest, kPart, &count, &repeats);) {
    const size_t times = repeats.empty() ? 1 : std::stoul(repeats);
    tasks.insert(tasks.end(), std::min(times, most - tasks.size()), count);
  }
  return tasks;
}

std::vector<int64_t> FirstSlots(int64_t count) {
  std::vector<int64_t> slots(static_cast<size_t>(std::min(count, kMostSlotsOfHost)));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

bool NamesGpus(const std::vector<std::string>& args) {
  return std::any_of(args.begin(), args.end(), [](const std::string& arg) {
    return arg.starts_with("--gpu") || arg.starts_with("--gres") || arg.starts_with("-G");
  });
}

// The last value of an option of salloc, also given as "-pgpu" or in two words; "" if there is
// none.
std::string OptionIn(const std::vector<std::string>& args, const std::string& name,
                     const std::string& letter) {
  std::string value;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool is_alone = args[i] == name || args[i] == letter;
    if (is_alone && i + 1 < args.size()) value = args[i + 1];
    if (args[i].starts_with(name + "=")) value = args[i].substr(name.size() + 1);
    if (!is_alone && args[i].starts_with(letter)) value = args[i].substr(letter.size());
  }
  return value;
}

// The seconds of a time limit as Slurm's commands accept and print it: minutes, minutes:seconds,
// hours:minutes:seconds, days-hours and so on; nullopt for anything else.
std::optional<double> SecondsOf(const std::string& text) {
  if (text == "0" || text == "UNLIMITED" || text == "INFINITE")
    return std::numeric_limits<double>::infinity();
  static const RE2 kForm(R"((?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,4}))?(?::(\d{1,4}))?)",
                         RegexOptions());
  std::string days, first, second, third;
  if (!RE2::FullMatch(text, kForm, &days, &first, &second, &third)) return std::nullopt;
  const auto number = [](const std::string& digits) {
    return digits.empty() ? 0 : std::stod(digits);
  };
  if (!days.empty())
    return ((number(days) * 24 + number(first)) * 60 + number(second)) * 60 + number(third);
  if (!third.empty()) return (number(first) * 60 + number(second)) * 60 + number(third);
  return number(first) * 60 + number(second);
}

// The value of an option of salloc, or of the variable that stands for it; "" if there is neither.
std::string OptionOrVariable(const std::vector<std::string>& args, const std::string& name,
                             const std::string& letter, const char* variable) {
  const std::string given = OptionIn(args, name, letter);
  const char* const value = given.empty() ? std::getenv(variable) : nullptr;
  return value != nullptr ? value : given;
}

// Slurm accepts a job whose time limit is above its partition's, and lets it wait.
void CheckTimeLimit(const std::vector<std::string>& args, const std::string& partition) {
  const std::string asked = OptionOrVariable(args, "--time", "-t", "SALLOC_TIMELIMIT");
  const std::string choice = OptionOrVariable(args, "--partition", "-p", "SALLOC_PARTITION");
  const bool has_choice = choice.find(',') != std::string::npos;
  if (asked.empty() || partition.empty() || has_choice) return;
  const std::string most =
      ValueOf(Ask("scontrol show partition " + ShellWord(partition)).text, "MaxTime=");
  const std::optional<double> asked_s = SecondsOf(asked), most_s = SecondsOf(most);
  if (!asked_s || !most_s || *asked_s <= *most_s) return;
  Throw(ErrorCode::kFailedPrecondition,
        "--slurm-args: --time {} (or SALLOC_TIMELIMIT) is above the limit of partition {}, {}: "
        "such a job would wait "
        "forever; expected a shorter time or another --partition",
        Printable(asked), Printable(partition), most);
}

// The nodes on which Slurm would run such a job, "n[1-2]". Throws if it would not.
std::string NodesFor(const std::vector<std::string>& args) {
  std::string options;
  for (const std::string& arg : args)
    options += fmt::format(" {}", ShellWord(arg));
  // srun knows options that salloc does not, and only srun tells the nodes.
  ShellAnswer answer = Ask(fmt::format("{}salloc{} --version", kForgetJob, options));
  if (answer.exit_code == 0)
    answer = Ask(fmt::format("{}{}srun --test-only{} true", kForgetJob, kTakeSallocs, options));
  const std::string nodes = ValueOf(answer.text, " on nodes ");
  if (answer.exit_code == 0 && !nodes.empty()) {
    CheckTimeLimit(args, ValueOf(answer.text, " in partition "));
    return nodes;
  }
  std::string said = answer.text.substr(0, answer.text.find_last_not_of('\n') + 1);
  for (size_t end; (end = said.find('\n')) != std::string::npos;)
    said.replace(end, 1, "; ");
  if (answer.exit_code == 0 && said.empty()) said = "srun names no nodes; leave out --quiet";
  Throw(ErrorCode::kFailedPrecondition,
        "--launcher slurm: Slurm refuses the job of a trial, `salloc{}`: {}; expected Slurm's "
        "commands in PATH, a cluster that answers `sinfo`, and nodes for this size (--slurm-args, "
        "--slurm-slots-per-node, resources.slots_per_trial)",
        options, Printable(said));
}

}  // namespace

std::vector<std::string> SplitSlurmArgs(const std::string& text) {
  std::vector<std::string> words;
  try {
    words = SplitCommand("salloc " + text);
  } catch (const Error& error) {
    Throw(ErrorCode::kInvalidArgument, "--slurm-args {}: {}", Printable(text), error.what());
  }
  if (words[0] != "salloc") {
    Throw(ErrorCode::kInvalidArgument,
          "--slurm-args \"{}\": expected options without variables, pipes and patterns, such as "
          "--partition=gpu --time=1:00:00",
          Printable(text));
  }
  words.erase(words.begin());
  return words;
}

SlurmNodes ParseNodes(const std::string& line) {
  std::istringstream words(line);
  std::string mark, tasks;
  SlurmNodes nodes;
  words >> mark >> nodes.job >> tasks;
  if (mark != kNodesMark) return {};
  const std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
  const std::vector<int64_t> counts = TasksOf(tasks, names.size());
  for (size_t i = 0; i < counts.size(); ++i)
    nodes.hosts.push_back({.name = names[i], .slots = FirstSlots(counts[i])});
  return nodes;
}

SlurmNodes NodesOfThisJob(int64_t slots_per_node) {
  const ShellAnswer answer = Ask(kPrintNodes);
  SlurmNodes nodes = ParseNodes(answer.text);
  if (nodes.hosts.empty()) {
    Throw(ErrorCode::kFailedPrecondition,
          "--launcher slurm: SLURM_JOB_ID is set, but the nodes of that job are unknown: {}; "
          "expected SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE, and scontrol in PATH",
          answer.text.starts_with(kNodesMark) ? "Slurm names none"
                                              : Printable(LastLine(answer.text)));
  }
  for (Host& host : nodes.hosts) {
    CheckHostName(host.name);
    if (slots_per_node > 0) host.slots = FirstSlots(slots_per_node);
  }
  return nodes;
}

std::vector<std::string> ReachBySrun(const std::string& job, const std::string& node) {
  // The step may use all that the job has on the node, beside other steps.
  return {"/bin/sh",
          "-c",
          std::string(kForgetJob) +
              "exec srun --jobid=\"$0\" --nodelist=\"$1\" --nodes=1 --ntasks=1 --overlap "
              "--cpu-bind=none --mpi=none --quiet /bin/sh -c \"$2\" \"$3\"",
          job,
          node,
          kForgetTask};
}

void CountDevicesAsSlots(int64_t slots_per_node, std::vector<LaunchHost>* hosts) {
  if (slots_per_node > 0) return;
  for (LaunchHost& host : *hosts)
    if (!host.devices.empty()) host.slots = FirstSlots(std::ssize(*VisibleDevices(host)));
}

ReachedHosts PlanJobs(const ExperimentSpec& spec, SlurmJobs* jobs) {
  const int64_t slots = spec.slots_per_trial;
  const int64_t most = jobs->slots_per_node > 0 ? jobs->slots_per_node : slots;
  const int64_t num_nodes = (slots + most - 1) / most;
  const int64_t each = (slots + num_nodes - 1) / num_nodes;
  std::vector<std::string> size = {fmt::format("--nodes={}", num_nodes),
                                   fmt::format("--ntasks={}", num_nodes * each),
                                   fmt::format("--ntasks-per-node={}", each)};
  if (IsBuiltin(spec) && spec.device == "cuda" && !NamesGpus(jobs->args))
    size.push_back(fmt::format("--gpus-per-node={}", each));
  jobs->args.insert(jobs->args.begin(), size.begin(), size.end());
  jobs->spec = spec;
  const std::string nodes = NodesFor(jobs->args);
  const ShellAnswer answer = Ask(fmt::format(
      "scontrol show node $(scontrol show hostnames {} | head -n 1)", ShellWord(nodes)));
  ReachedHosts plan;
  plan.runner_address = RouteTo(ValueOf(answer.text, "NodeAddr=")).here;
  if (plan.runner_address.empty()) {
    Throw(ErrorCode::kFailedPrecondition,
          "--launcher slurm: the address of the first of the nodes {} is unknown here: {}; "
          "expected a machine that reaches the nodes",
          nodes, LastLine(answer.text));
  }
  for (int64_t node = 0; node < num_nodes; ++node) {
    plan.hosts.push_back({.name = fmt::format("slurm-node-{}", node),
                          .reach = ReachBySrun("", ""),
                          .slots = FirstSlots(each)});
  }
  return plan;
}

bool HasSteps(const std::string& job) {
  // Numbered ones: "12.extern" lasts as long as the job.
  const ShellAnswer answer =
      Ask(fmt::format("squeue --noheader --steps --jobs={} --format=%i", ShellWord(job)));
  if (answer.exit_code == kTimedOut || answer.exit_code == kNotRun) return true;  // They may run.
  std::istringstream lines(answer.text);
  for (std::string line; std::getline(lines, line);) {
    const size_t step = job.size() + 1;
    if (line.starts_with(job + ".") && line.size() > step &&
        std::isdigit(static_cast<unsigned char>(line[step])) != 0)
      return true;
  }
  return false;
}

std::string WhySlurmWaits(const std::string& job) {
  const ShellAnswer answer = Ask("scontrol show job " + ShellWord(job));
  const std::string reason = ValueOf(answer.text, " Reason=");
  return ValueOf(answer.text, "JobState=") == "PENDING" && reason != "None" ? reason : "";
}

std::string WhySlurmEnded(const std::string& job) {
  constexpr int kMostLooks = 25;
  constexpr std::chrono::milliseconds kPause{200};
  std::string state, reason;
  for (int look = 0; look < kMostLooks && (look == 0 || state == "COMPLETING"); ++look) {
    if (look > 0) std::this_thread::sleep_for(kPause);
    const ShellAnswer answer = Ask("scontrol show job " + ShellWord(job));
    state = ValueOf(answer.text, "JobState=");
    reason = ValueOf(answer.text, " Reason=");
  }
  if (state.empty() || state == "RUNNING") return "";
  const bool says_why = !reason.empty() && reason != "None";
  return fmt::format("Slurm ended job {}: {}{}", job, state,
                     says_why ? fmt::format(" ({})", reason) : "");
}

}  // namespace dsat
