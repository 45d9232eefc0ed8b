// The defaults of launch targets.
#include "searcher/launch/launch_target.h"

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

}  // namespace dsat
