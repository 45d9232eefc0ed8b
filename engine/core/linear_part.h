// Parts of a parameter that other programs know as Linear layers.
#ifndef DSAT_ENGINE_CORE_LINEAR_PART_H_
#define DSAT_ENGINE_CORE_LINEAR_PART_H_

#include <cstdint>
#include <string>

namespace dsat::engine {

// The weight (outs, in) of a Linear layer of PyTorch: `outs` columns of a parameter (in, out).
struct LinearPart {
  std::string name;
  int64_t outs = 0;
  bool operator==(const LinearPart&) const = default;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CORE_LINEAR_PART_H_
