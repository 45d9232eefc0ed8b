// What every launch target does unless it says otherwise: results come by gRPC, not as files.
#include "searcher/launch/launcher.h"

namespace dsat {

std::optional<PointResult> LaunchTarget::PollMeasurement(const LaunchRequest&) {
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
