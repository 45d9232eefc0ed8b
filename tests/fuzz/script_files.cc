// Reads the files that a user's script leaves: DeepSpeed's metrics, the reports of the import hook,
// and its log.
#include <string>

#include "base/json.h"
#include "searcher/input/shell_words.h"
#include "searcher/scripts/deepspeed_metrics.h"
#include "searcher/scripts/exit_classifier.h"
#include "searcher/scripts/ran_config.h"
#include "searcher/scripts/script_losses.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The JSON file; the log; a command line.
void ScriptFiles(std::string_view input) {
  const auto parts = Parts(input, 3);
  const std::string text(parts[0]), log(parts[1]), command(parts[2]);
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  NormalizeMetrics(file, 2, 8, 1.5);
  NormalizeModelInfo(file, 2);
  ReadHookReport(text);
  LossesInLog(WriteInput("rank0.log", log), "loss: *([^ ,]*)");
  CountStepLines(log);
  MaxMemAllocated(log);
  ReadConfigDump(log);
  ClassifyLog(log);
  DivergedLoss(log);
  WhyStuck(log);
  DescribeExit({.first_failed_rank = 0, .exit_code = 1, .log_tail = log});
  SplitCommand(command);
}

}  // namespace dsat::fuzz
