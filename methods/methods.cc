// The table of methods.
#include "methods/methods.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "methods/asha.h"
#include "methods/auto.h"
#include "methods/binary.h"
#include "methods/grid.h"
#include "methods/random.h"

namespace dsat {
namespace {

template <typename T>
std::unique_ptr<Method> Make(const SearchSpace& space, const SearchOptions& options) {
  return std::make_unique<T>(space, options);
}

}  // namespace

std::span<const MethodInfo> Methods() {
  static const std::array<MethodInfo, 5> kMethods = {{
      {"auto",
       "predict every configuration, measure the most promising, stop when the answer is known "
       "well enough",
       Make<AutoMethod>},
      {"asha", "begin to bisect many random configurations, and continue with the promising ones",
       Make<AshaMethod>},
      {"binary", "bisect each random configuration to its largest micro-batch size",
       Make<BinaryMethod>},
      {"random", "random configurations with random micro-batch sizes near the best so far",
       Make<RandomMethod>},
      {"grid", "every stage at micro-batch sizes 1, 2, 4, ..., then one knob at a time",
       Make<GridMethod>},
  }};
  return kMethods;
}

const MethodInfo& FindMethod(const std::string& name) {
  std::vector<std::string> names;
  for (const MethodInfo& method : Methods()) {
    if (method.name == name) return method;
    names.push_back(method.name);
  }
  Throw(ErrorCode::kInvalidArgument, "method: \"{}\" is not known; expected one of {}", name,
        fmt::join(names, ", "));
}

}  // namespace dsat
