// dsat list, show, best, query, export and report: the content of the database.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <semaphore>

#include "base/error.h"
#include "base/files.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output/output.h"
#include "cli/report/page.h"
#include "cli/report/report.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "db/store.h"
#include "searcher/command/import_hook.h"
#include "searcher/results.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {
namespace {

using BestTrials = std::map<ExperimentId, BestTrial>;

Json ToJson(const Store& store, const ExperimentRow& row, const BestTrials& best_trials) {
  Json json{{"id", row.id},
            {"name", row.name},
            {"method", row.method},
            {"state", ToString(row.state)},
            {"running", IsRunning(store, row)},
            {"reason", row.reason},
            {"created_at", row.created_at},
            {"trials", row.num_trials},
            {"metric", row.metric},
            {"best_trial", nullptr},
            {"best_value", nullptr}};
  if (const auto best = best_trials.find(row.id); best != best_trials.end()) {
    json["best_trial"] = best->second.trial;
    json["best_value"] = best->second.value;
  }
  return json;
}

std::string CellText(const Json& value) {
  if (value.is_null()) return "";
  // Ten digits are more than the precision of measurements; --json prints all digits.
  if (value.is_number_float()) return fmt::format("{:.10g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Becomes the Python program that writes the trials elsewhere (python/dsat/_export.py).
[[noreturn]] void ExportByPython(const std::string& db, const ExportFlags& flags) {
  const char* const ours = std::getenv("PYTHONPATH");
  const std::string path = PythonPath(PythonFolder(), ours == nullptr ? "" : ours);
  setenv("PYTHONPATH", path.c_str(), /*overwrite=*/1);
  setenv("DSAT_PROGRAM", std::filesystem::read_symlink("/proc/self/exe").c_str(), /*overwrite=*/1);
  const char* const experiment = flags.experiment.empty() ? nullptr : flags.experiment.c_str();
  execlp("python3", "python3", "-c", "from dsat._export import main; main()", flags.to.c_str(),
         db.c_str(), experiment, nullptr);
  ThrowErrno("export --to: python3, whose packages it needs", errno);
}

namespace fs = std::filesystem;

// How often --watch writes the page.
constexpr int64_t kWatchSeconds = 5;

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
    report = ReadReport(store, id, experiment ? &*experiment : nullptr);
    report.why_no_search = why_not;
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
};

}  // namespace

int RunCommand(const Flags& flags, const ListFlags&) {
  const Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const std::vector<ExperimentRow> rows = store.ListExperiments();
  const BestTrials best_trials = store.BestTrials();
  if (flags.json) {
    Json json = Json::array();
    for (const ExperimentRow& row : rows)
      json.push_back(ToJson(store, row, best_trials));
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  std::vector<std::vector<std::string>> cells;
  for (const ExperimentRow& row : rows) {
    const auto best = best_trials.find(row.id);
    const bool has_best = best != best_trials.end();
    cells.push_back(
        {std::to_string(row.id), row.name, row.method, StateText(store, row),
         std::to_string(row.num_trials), has_best ? std::to_string(best->second.trial) : "",
         has_best ? DescribeMetric(row.metric, best->second.value) : "", row.created_at});
  }
  fmt::print("{}", FormatTable({"id", "name", "method", "state", "trials", "best trial", "measured",
                                "created (UTC)"},
                               cells));
  return 0;
}

int RunCommand(const Flags& flags, const ShowFlags& show) {
  Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const Experiment experiment = Experiment::Open(store, store.FindExperiment(show.experiment));
  if (flags.json) {
    Json json = SummaryJson(experiment, "");
    json["running"] = IsRunning(store, store.GetExperiment(experiment.id()));
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", SummaryText(experiment, TerminalColumns(STDOUT_FILENO)));
  }
  return 0;
}

int RunCommand(const Flags& flags, const BestFlags& best) {
  Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const Experiment experiment = Experiment::Open(store, store.FindExperiment(best.experiment));
  const Verdict verdict = VerdictOf(experiment.search());
  if (!verdict.pick)
    Throw(ErrorCode::kNotFound, "best: no trial of experiment {} has succeeded", experiment.id());
  if (!best.out_dir.empty()) {
    MakeWritableFolder(best.out_dir);
    const RunnerLock folder =
        RunnerLock::ClaimFolder(best.out_dir, FolderOwner(store, experiment.id()));
    WriteResults(experiment, best.out_dir);
  }
  if (flags.json) {
    Json json = TrialJson(experiment.search(), *verdict.pick);
    json["ds_config"] = ConfigToKeep(experiment.search(), *verdict.pick);
    json["verdict"] = ToJson(verdict);
    fmt::print("{}\n", json.dump(2));
  } else {
    // A script reads the configuration from standard output.
    Say(stderr, ShortAnswer(experiment.search(), verdict, experiment.id()));
    fmt::print("{}\n", ConfigToKeep(experiment.search(), *verdict.pick).dump(2));
  }
  return 0;
}

int RunCommand(const Flags& flags, const QueryFlags& query) {
  const Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const QueryResult result = store.Query(
      query.sql,
      QueryLimits{.time = std::chrono::seconds(query.max_seconds), .num_rows = query.max_rows});
  if (flags.json) {
    fmt::print("{}\n", RowsAsJson(result).dump(2));
    return 0;
  }
  std::vector<std::vector<std::string>> cells;
  for (const auto& row : result.rows) {
    std::vector<std::string>& out = cells.emplace_back();
    for (const Json& value : row)
      out.push_back(CellText(value));
  }
  fmt::print("{}", FormatTable(result.columns, cells));
  return 0;
}

int RunCommand(const Flags& flags, const ExportFlags& export_flags) {
  if (!export_flags.to.empty()) ExportByPython(flags.db, export_flags);
  Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const ExperimentId id = store.FindExperiment(export_flags.experiment);
  const std::string& format = export_flags.format;
  if (flags.json && format == "csv")
    Throw(ErrorCode::kInvalidArgument, "--format csv: it contradicts --json; pass one of them");
  fmt::print("{}", ExportTrials(store, id, flags.json || format == "json" ? "json" : "csv"));
  return 0;
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
