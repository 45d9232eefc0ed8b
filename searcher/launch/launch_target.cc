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

bool IsBuiltin(const ExperimentSpec& spec) {
  return spec.entrypoint == std::vector<std::string>{"builtin"};
}

std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary) {
  return IsBuiltin(spec) ? MakeBuiltinTarget(spec, trial_binary) : MakeCommandTarget(spec);
}

}  // namespace dsat
