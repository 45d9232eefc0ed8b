// dsat space: a search that ends once the model's profile is known, and what is predicted then.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/machine_facts.h"
#include "cli/output/describe.h"
#include "cli/progress.h"
#include "cli/read_spec.h"
#include "cli/runner_options.h"
#include "cli/space_output.h"
#include "cli/status_line.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/objective.h"
#include "searcher/input/preflight.h"
#include "searcher/runner.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNumBest = 10;

// The experiment of a search with these options.
ExperimentSpec MakeSpec(const SpaceFlags& space, RunnerOptions* options) {
  SearchFlags search = space.search;
  DescribeCommand(&search);
  std::vector<std::string> read;
  ExperimentSpec spec = ReadSpec(search.config, search.model_dir, &read);
  spec.method = search.method;
  spec.options = search.options;
  spec.options.auto_method.warm_start = "off";
  SetTrainBatchSize(search.train_batch_size, spec);
  for (const std::string& warning : CheckStages(spec))
    Log(LogLevel::kWarn, warning);
  if (!space.profile.empty()) {
    spec.profile = ProfileFromJson(ReadJsonFile(space.profile), space.profile);
    if (IsBuiltin(spec)) LogNew(CheckSpec(spec, /*elsewhere=*/true), read);
    return spec;
  }
  PlanSlurm(spec, options);
  const std::vector<LaunchHost>& hosts = options->machines.hosts;
  LogNew(CheckSpec(spec, AreElsewhere(hosts)), read);
  CheckHosts(spec, hosts);
  spec.machine = MachineFacts(spec, hosts);
  return spec;
}

// A folder for the logs of the profiling trials: `given`, or one that is removed if they were not
// needed.
class LogFolder {
 public:
  explicit LogFolder(const std::string& given) : keeps_(!given.empty()) {
    if (keeps_) {
      path_ = fs::absolute(given).string();
      return;
    }
    path_ = MakeTemporaryFolder();
  }
  ~LogFolder() {
    std::error_code ignored;
    if (!keeps_) fs::remove_all(path_, ignored);
  }
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  const std::string& path() const { return path_; }
  void Keep() { keeps_ = true; }

 private:
  std::string path_;
  bool keeps_;
};

// Searches until the profile is known. Returns false if the user has stopped it.
bool Profile(RunnerOptions options, const std::string& out_dir, Experiment& experiment) {
  const bool must_be_shared = out_dir.empty() && !options.machines.hosts.empty();
  LogFolder folder(must_be_shared ? "dsat-out/space" : out_dir);
  options.out_dir = folder.path();
  ProgressDisplay display;
  Runner* running = nullptr;
  Runner runner(experiment, options, [&](const Experiment& e, const RunnerEvent& event) {
    const bool is_over = event.kind == RunnerEvent::Kind::kProfiled;
    is_over ? running->Cancel() : display.OnEvent(e, event);
  });
  running = &runner;
  // The signals must be blocked before Run starts threads.
  const InterruptHandler interrupt([&runner] { runner.Cancel(); }, OnHangup::kGoOn);
  const ExperimentState state = runner.Run();
  if (experiment.search().space()) return true;
  if (state == ExperimentState::kActive) return false;
  folder.Keep();
  Throw(ErrorCode::kFailedPrecondition, "space: {}; its logs are in {}",
        experiment.search().FailureReason(), options.out_dir);
}

}  // namespace

int RunCommand(const Flags& flags, const SpaceFlags& space) {
  RunnerOptions options = MakeRunnerOptions(space.search.run);
  const ExperimentSpec spec = MakeSpec(space, &options);
  Store store = Store::InMemory();
  Experiment experiment = Experiment::Create(store, spec);
  if (!spec.profile && !Profile(options, space.search.run.out_dir, experiment))
    return kExitInterrupted;
  const dsat::Search& search = experiment.search();
  const Outlook outlook = LookAhead(search, kNumBest);
  if (flags.json) {
    Say(stdout, SpaceJson(search, outlook).dump(2) + "\n");
  } else {
    Say(stdout, DescribeProfile(experiment.search()) + "\n\n" +
                    SpaceText(search, outlook, TerminalColumns(STDOUT_FILENO)));
  }
  return 0;
}

}  // namespace dsat::cli
