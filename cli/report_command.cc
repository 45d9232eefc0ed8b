// Writes the page of an experiment.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <semaphore>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output/output.h"
#include "cli/report/page.h"
#include "cli/report/report.h"
#include "cli/runner_options.h"
#include "db/store.h"
#include "searcher/search/experiment.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// How often --watch writes the page.
constexpr int64_t kWatchSeconds = 5;

// The content of the page; `experiment` is nullptr if it does not replay, because of `why_not`.
Report ContentOf(const Store& store, ExperimentId id, const Experiment* experiment,
                 const std::string& why_not) {
  Report read = ReadReport(store, id, experiment);
  read.why_no_search = why_not;
  read.state = StateText(store, read.row);
  if (experiment != nullptr) read.out_dir = OutDir({}, *experiment);
  read.has_results = fs::exists(read.out_dir + "/ds_config.json");
  return read;
}

// An experiment with its report, which refers to it.
struct Shown {
  std::optional<Experiment> experiment;
  Report report;

  Shown(Store& store, ExperimentId id) {
    std::string why_not;
    try {
      experiment.emplace(Experiment::Open(store, id));
    } catch (const Error& error) {
      // The measurements can be shown all the same.
      if (error.code() != ErrorCode::kDataLoss) throw;
      why_not = error.what();
    }
    report = ContentOf(store, id, experiment ? &*experiment : nullptr, why_not);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
};

}  // namespace

void WriteReport(const Experiment& experiment, const std::string& path) {
  WriteFileAtomic(path,
                  ReportPage(ContentOf(experiment.store(), experiment.id(), &experiment, "")));
}

int RunCommand(const Flags& flags, const ReportFlags& report) {
  Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const ExperimentId id = store.FindExperiment(report.experiment);
  std::optional<ExperimentId> other;
  if (!report.other.empty()) other = store.FindExperiment(report.other);
  const std::string name = other ? fmt::format("{}-{}", id, *other) : std::to_string(id);
  const std::string out = report.out.empty() ? "dsat-report-" + name + ".html" : report.out;
  CheckTarget("report: --out", out, "a page", kPageBegin);
  std::counting_semaphore interrupts(0);
  bool is_interrupted = false;
  std::optional<InterruptHandler> interrupt;
  if (report.watch) interrupt.emplace([&] { interrupts.release(); });
  for (;; is_interrupted = interrupts.try_acquire_for(std::chrono::seconds(kWatchSeconds))) {
    Shown shown(store, id);
    const bool runs = report.watch && !is_interrupted && IsRunning(store, shown.report.row);
    // The last page does not refresh itself any more.
    shown.report.refresh_s = runs ? kWatchSeconds : 0;
    const std::string page = other ? ComparisonPage(shown.report, Shown(store, *other).report)
                                   : ReportPage(shown.report);
    WriteFileAtomic(out, page);
    if (runs) continue;
    if (flags.json) {
      fmt::print("{}\n", Json{{"experiment", id},
                              {"compared_with", other ? Json(*other) : Json()},
                              {"file", fs::absolute(out).string()},
                              {"bytes", page.size()},
                              {"trials", shown.report.trials.size()},
                              {"trials_left_out", shown.report.num_left_out}}
                             .dump(2));
    } else {
      fmt::print("{}\n", out);
    }
    return is_interrupted ? kExitInterrupted : 0;
  }
}

}  // namespace dsat::cli
