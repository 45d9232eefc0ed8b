// The defaults of launch targets, and the choice of the target.
#include "searcher/launch/launch_target.h"

#include "searcher/launch/builtin_target.h"
#include "searcher/scripts/command_target.h"

namespace dsat {

std::optional<PointResult> LaunchTarget::PollMeasurement(const LaunchRequest&, bool) {
  return std::nullopt;
}
std::optional<ModelProfile> LaunchTarget::PollProfile(const LaunchRequest&) {
  return std::nullopt;
}
int64_t LaunchTarget::PollProgress(const LaunchRequest&) {
  return 0;
}

std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary) {
  return IsBuiltin(spec) ? MakeBuiltinTarget(spec, trial_binary) : MakeCommandTarget(spec);
}

}  // namespace dsat
