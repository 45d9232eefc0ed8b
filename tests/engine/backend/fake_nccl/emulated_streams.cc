// A fake NCCL over the emulated GPU's memory, on its queues.
#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/backend/fake_nccl/streams.h"

namespace fake_nccl {

using emulated_cuda::Gpu;
using emulated_cuda::Point;

Place PlaceIn(void* stream) {
  const auto queue = Gpu::Get().Find(static_cast<cudaStream_t>(stream));
  return std::make_shared<Point>(Gpu::Get().Now(queue));
}

void Do(const std::vector<Place>& places, const std::function<void()>& work) {
  std::vector<Point> points;
  points.reserve(places.size());
  for (const Place& place : places)
    points.push_back(*static_cast<const Point*>(place.get()));
  const Point done = Gpu::Get().Enqueue(points[0].queue, work, points);
  for (const Point& point : points)
    if (point.queue != done.queue) Gpu::Get().Enqueue(point.queue, nullptr, {done});
}

void Block(const Place& place, const std::shared_ptr<std::atomic<bool>>& gate) {
  Gpu::Get().Block(static_cast<const Point*>(place.get())->queue, gate);
}

}  // namespace fake_nccl
