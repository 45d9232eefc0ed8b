// Times all-reduces.
#include "engine/worker/link_speed.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace dsat::engine {

double MeasureLink(ProcessGroup& group, Stream& stream, DType dtype, int64_t num_elems) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  constexpr int kTries = 4;
  if (group.size() == 1) return 0;
  const int64_t row_elems = std::min(kMostBytes / BytesPerElem(dtype), num_elems) / group.size();
  const CommBuffer buffer = group.Allocate(group.size() * row_elems * BytesPerElem(dtype));
  const int64_t sent_before = group.traffic().sent_bytes;
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    group.Barrier();
    const auto start = std::chrono::steady_clock::now();
    group.AllReduce(buffer, dtype, row_elems);
    int16_t last = 0;  // A GPU has done all when it has handed over what was written last.
    stream.Download(&last, buffer.data, sizeof(last));
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    best_s = std::min(best_s, passed.count());
  }
  return static_cast<double>(group.traffic().sent_bytes - sent_before) / kTries / best_s;
}

}  // namespace dsat::engine
