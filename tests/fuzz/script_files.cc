// Reads the files that a user's script leaves: the reports of its ranks, and its log.
#include <string>

#include "base/error.h"
#include "searcher/command/command_words.h"
#include "searcher/scripts/exit_classifier.h"
#include "searcher/scripts/hook_report.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The JSON file; the log; a command line.
void ScriptFiles(std::string_view input) {
  const auto parts = Parts(input, 3);
  const std::string text(parts[0]), log(parts[1]), command(parts[2]);
  const auto report = ReadHookReport(text);
  if (report && !report->steps.empty()) MeasurementOf({*report}, 8);
  if (report && !report->profile.is_null()) {
    try {
      ProfileOf(*report, 1 << 30, "profile");
    } catch (const Error&) {
    }
  }
  LossesInLog(WriteInput("rank0.log", log), "loss: *([^ ,]*)");
  ClassifyLog(log);
  DivergedLoss(log);
  WhyStuck(log);
  DescribeExit({.first_failed_rank = 0, .exit_code = 1, .log_tail = log});
  SplitCommand(command);
}

}  // namespace dsat::fuzz
