// The user's command.
#include <string>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"
#include "searcher/command/trainer_command.h"
#include "searcher/launch/launch_target.h"
#include "searcher/scripts/node_command.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The command line; the text of its ds_config.json. There is no script, which Python would read.
void CommandLine(std::string_view input) {
  const auto parts = Parts(input, 2);
  ExperimentSpec spec;
  spec.entrypoint = SplitCommand(std::string(parts[0]));
  if (spec.entrypoint.empty()) return;
  spec.ds_config_path = WriteInput("ds_config.json", parts[1]);
  spec.ds_config = ParseTolerantJson(parts[1], spec.ds_config_path);
  if (!spec.ds_config.is_object()) return;  // The experiment file's reader has refused it.
  spec.model_dir = spec.ds_config_path.substr(0, spec.ds_config_path.rfind('/'));
  spec.slots_per_trial = 2;
  CheckCommandConfig(spec.ds_config_path, &spec);
  CheckDeepSpeedCommand(spec, false);
  ArgvForTrial(spec, spec.ds_config, "trial.json", 29500);
  if (!FindRankLauncher(CommandWords(spec.entrypoint))) return;
  LaunchRequest request;
  request.hosts = {{.name = "a", .slots = {0}}, {.name = "b", .slots = {0}}};
  request.slots = {{0, 0}, {1, 0}};
  ArgvOfHosts(spec.entrypoint, request, spec.model_dir + "/hosts_of_launcher");
}

}  // namespace dsat::fuzz
