// dsat demo: tunes an example that is compiled in.
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "cli/commands.h"

namespace dsat::cli {

// The experiment file of cli/demo, and the ds_config of examples/quickstart.
extern const char kDemoExperiment[];
extern const char kDemoConfig[];

int RunCommand(const Flags& flags, const DemoFlags& demo) {
  std::filesystem::create_directories(demo.folder);
  const std::string experiment = demo.folder + "/deepspeed.yaml";
  const std::string config = demo.folder + "/ds_config.json";
  for (const auto& [path, content] :
       {std::pair(experiment, kDemoExperiment), {config, kDemoConfig}}) {
    if (!std::filesystem::exists(path)) WriteFileAtomic(path, content);
  }
  // A training that is long enough to repay its search.
  std::vector<const char*> words = {"dsat",  "auto", experiment.c_str(), "--run-steps",
                                    "20000", "--db", flags.db.c_str()};
  if (flags.json) words.push_back("--json");
  const auto parsed = ParseFlags(static_cast<int>(words.size()), words.data());
  const Flags& search = std::get<Flags>(parsed);
  return RunCommand(search, std::get<SearchFlags>(search.command));
}

}  // namespace dsat::cli
