// A fake NCCL over host memory.
#include "tests/engine/backend/fake_nccl/streams.h"

namespace fake_nccl {

Place PlaceIn(void*) {
  return nullptr;
}

void Do(const std::vector<Place>&, const std::function<void()>& work) {
  work();
}

}  // namespace fake_nccl
