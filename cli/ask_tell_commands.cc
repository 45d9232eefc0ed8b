// dsat create, ask, tell and serve: experiments whose trials are run by other programs.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <semaphore>
#include <thread>

#include "base/error.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output/output.h"
#include "cli/read_spec.h"
#include "cli/status_line.h"
#include "db/store.h"
#include "searcher/input/objective.h"
#include "searcher/input/preflight.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "searcher/service/service.h"

namespace dsat::cli {
namespace {

std::string NameOf(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

Json ReadJsonArgument(const std::string& path) {
  if (path != "-") return ReadJsonFile(path);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  return ParseTolerantJson(text, NameOf(path));
}

ModelProfile ReadProfile(const std::string& path) {
  return ProfileFromJson(ReadJsonArgument(path), NameOf(path));
}

// The longest time for calls to end after SIGTERM.
constexpr std::chrono::milliseconds kMostOfShutdown{1800};

// The file, readable by this user only, of the key that clients on the network need. It is beside
// the database while the server runs.
class KeyFile {
 public:
  KeyFile(const std::string& db, const ExperimentServer& server) {
    if (server.key().empty()) return;
    const std::string port = server.address().substr(server.address().rfind(':') + 1);
    path_ = std::filesystem::absolute(fmt::format("{}-{}.pem", db, port));
    unlink(path_.c_str());  // A killed server has left it.
    const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string& key = server.key();
    const bool written =
        file && write(file.get(), key.data(), key.size()) == static_cast<ssize_t>(key.size());
    if (written) return;
    const int error = errno;
    if (file) Remove();
    ThrowErrno("the key file " + path_, error);
  }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() { Remove(); }

  const std::string& path() const { return path_; }  // "" if no client needs one.
  void Remove() const {
    if (!path_.empty()) unlink(path_.c_str());
  }

 private:
  std::string path_;
};

}  // namespace

int RunCommand(const Flags& flags, const CreateFlags& create) {
  ExperimentSpec spec = ReadSpec(create.config, create.model_dir);
  spec.method = create.method;
  spec.options = create.options;
  if (IsBuiltin(spec)) Warn(CheckSpec(spec, /*elsewhere=*/true));
  Warn(CheckStages(spec));
  SetTrainBatchSize(create.train_batch_size, spec);
  if (!create.profile.empty()) spec.profile = ReadProfile(create.profile);
  Experiment::Check(spec);
  Store store = OpenForNew(flags.db, spec);
  const Experiment experiment = Experiment::Create(store, spec);
  if (flags.json) {
    fmt::print("{}\n", Json{{"experiment", experiment.id()}, {"name", spec.name}}.dump());
  } else {
    fmt::print("{}\n", experiment.id());
  }
  return 0;
}

int RunCommand(const Flags& flags, const AskFlags& ask) {
  Store store = Store::Open(flags.db, Store::Mode::kReadWrite);
  Experiment experiment = Experiment::Open(store, store.FindExperiment(ask.experiment));
  RunnerLock::CheckNotOurs(store, experiment.id());
  const std::optional<Trial> trial = experiment.Ask();
  const bool finished = experiment.FinishIfDone();
  if (flags.json) {
    fmt::print("{}\n", Json{{"experiment", experiment.id()},
                            {"trial", trial ? TrialJson(experiment.search(), trial->id) : Json()},
                            {"finished", finished},
                            {"state", ToString(experiment.state())},
                            {"reason", experiment.reason()}}
                           .dump());
  } else if (trial) {
    fmt::print("trial {}\n{}\n", trial->id, trial->ds_config.dump(2));
  } else if (!finished) {
    Say(stderr, "no trial now: first tell how a running trial ended\n");
  } else if (experiment.state() != ExperimentState::kFailed) {
    Say(stderr, "finished: there are no more trials\n");
  }
  if (experiment.state() == ExperimentState::kFailed)
    Throw(ErrorCode::kFailedPrecondition, "experiment failed: {}", experiment.reason());
  return 0;
}

int RunCommand(const Flags& flags, const TellFlags& tell) {
  Outcome outcome{TrialState::kSucceeded, ""};
  if (tell.infeasible) outcome = {TrialState::kInfeasible, *tell.infeasible};
  if (tell.failed) outcome = {TrialState::kFailed, *tell.failed};
  std::optional<ModelProfile> profile;
  if (!tell.profile.empty()) profile = ReadProfile(tell.profile);
  Measurement measurement;
  if (!tell.metrics.empty())
    measurement = MeasurementFromJson(ReadJsonArgument(tell.metrics), NameOf(tell.metrics));

  Store store = Store::Open(flags.db, Store::Mode::kReadWrite);
  Experiment experiment = Experiment::Open(store, store.FindExperiment(tell.experiment));
  RunnerLock::CheckNotOurs(store, experiment.id());
  const auto found = experiment.search().trials().find(tell.trial);
  if (found == experiment.search().trials().end())
    Throw(ErrorCode::kNotFound, "tell: experiment {} has no trial {}; it has asked for {}",
          experiment.id(), tell.trial, experiment.search().trials().size());
  std::vector<PointResult> points;
  if (!measurement.empty()) points.push_back({ConfigPoint(found->second), measurement});
  experiment.TellExternal(tell.trial, outcome, points, profile);
  const bool finished = experiment.FinishIfDone();
  if (flags.json)
    fmt::print("{}\n", Json{{"experiment", experiment.id()},
                            {"trial", tell.trial},
                            {"state", ToString(outcome.state)},
                            {"finished", finished},
                            {"experiment_state", ToString(experiment.state())},
                            {"reason", experiment.reason()}}
                           .dump());
  return 0;
}

int RunCommand(const Flags& flags, const ServeFlags& serve) {
  std::binary_semaphore stop(0);
  const InterruptHandler interrupt([&stop] { stop.release(); });
  const ExperimentServer server(flags.db, serve.listen);
  const KeyFile key(flags.db, server);
  if (flags.json) {
    fmt::print("{}\n", Json{{"address", server.address()}, {"key", key.path()}}.dump());
  } else {
    fmt::print("address {}\n", server.address());
    if (!key.path().empty()) fmt::print("key {}\n", key.path());
  }
  // Nobody could reach a server whose address was lost.
  if (std::fflush(stdout) != 0) ThrowErrno("cannot write to standard output", errno);
  stop.acquire();
  key.Remove();
  // A call that is at work for longer, such as the replay of a long log, records all or nothing.
  std::thread([] {
    std::this_thread::sleep_for(kMostOfShutdown);
    std::_Exit(0);
  }).detach();
  return 0;
}

}  // namespace dsat::cli
