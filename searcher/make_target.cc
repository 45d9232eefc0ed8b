// Chooses the launch target of an experiment.
#include "searcher/make_target.h"

#include "searcher/launch/builtin_target.h"
#include "searcher/scripts/command_target.h"

namespace dsat {

std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary) {
  return IsBuiltin(spec) ? MakeBuiltinTarget(spec, trial_binary) : MakeCommandTarget(spec);
}

}  // namespace dsat
