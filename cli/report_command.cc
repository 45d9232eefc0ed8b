// Writes the page of an experiment.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/output/output.h"
#include "cli/report/page.h"
#include "cli/report/report.h"
#include "cli/runner_options.h"
#include "db/store.h"
#include "searcher/search/experiment.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

void WriteReport(const Experiment& experiment, const std::string& path) {
  WriteFileAtomic(path,
                  ReportPage(ContentOf(experiment.store(), experiment.id(), &experiment, "")));
}

int RunCommand(const Flags& flags, const ReportFlags& report) {
  Store store = Store::Open(flags.db, Store::Mode::kReadOnly);
  const ExperimentId id = store.FindExperiment(report.experiment);
  const std::string out = report.out.empty() ? fmt::format("dsat-report-{}.html", id) : report.out;
  CheckTarget("report: --out", out, "a page", kPageBegin);
  std::optional<Experiment> experiment;
  std::string why_not;
  try {
    experiment.emplace(Experiment::Open(store, id));
  } catch (const Error& error) {
    // The measurements can be shown all the same.
    if (error.code() != ErrorCode::kDataLoss) throw;
    why_not = error.what();
  }
  const Report read = ContentOf(store, id, experiment ? &*experiment : nullptr, why_not);
  const std::string page = ReportPage(read);
  WriteFileAtomic(out, page);
  if (flags.json) {
    fmt::print("{}\n", Json{{"experiment", id},
                            {"file", fs::absolute(out).string()},
                            {"bytes", page.size()},
                            {"trials", read.trials.size()},
                            {"trials_left_out", read.num_left_out}}
                           .dump(2));
  } else {
    fmt::print("{}\n", out);
  }
  return 0;
}

}  // namespace dsat::cli
