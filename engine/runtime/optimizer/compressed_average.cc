// The mean over ranks at one bit per element.
#include "engine/runtime/optimizer/compressed_average.h"

#include "engine/plan/plan.h"
#include "engine/runtime/state/redistribute.h"

namespace dsat::engine {

CompressedAverage::CompressedAverage(int64_t num_elems, ProcessGroup& group, Kernels& kernels,
                                     Arena& arena)
    : share_elems_(num_elems / group.size()),
      row_bytes_(CompressedRowBytes(num_elems, group.size())),
      group_(group),
      kernels_(kernels),
      worker_error_(arena.Allocate(DType::kF32, num_elems, "compression errors")),
      owner_error_(arena.Allocate(DType::kF32, share_elems_, "compression errors")),
      mean_(arena.Allocate(DType::kF32, share_elems_, "compressed average")),
      charge_(ChargeBuckets(arena, group.size() * row_bytes_)),
      bucket_(group.Allocate(group.size() * row_bytes_)) {
  DSAT_CHECK(num_elems > 0 && num_elems % (8 * group.size()) == 0, "{} elements, {} ranks",
             num_elems, group.size());
  ResetErrors();
}

void CompressedAverage::ResetErrors() {
  kernels_.Run(op::Fill{worker_error_.AsTensor(DType::kF32), 0});
  kernels_.Run(op::Fill{owner_error_.AsTensor(DType::kF32), 0});
}

uint8_t* CompressedAverage::Signs(int row) const {
  if (bucket_.data == nullptr) return nullptr;
  return static_cast<uint8_t*>(bucket_.data) + row * row_bytes_ + kCompressedHeaderBytes;
}

float* CompressedAverage::Scale(int row) const {
  if (bucket_.data == nullptr) return nullptr;
  return reinterpret_cast<float*>(Signs(row) - kCompressedHeaderBytes);
}

void CompressedAverage::Pack(int row, const Tensor& error, const Tensor& values) {
  kernels_.Run(op::CompressSigns{error, Signs(row), Scale(row), values});
}

void CompressedAverage::Unpack(const Tensor& values, int row, float factor, bool accumulate) {
  kernels_.Run(op::DecompressSigns{values, Signs(row), Scale(row), factor, accumulate});
}

void CompressedAverage::Run(Tensor values) {
  const int num_ranks = group_.size();
  const Tensor worker_error = worker_error_.AsTensor(DType::kF32);
  const Tensor mean = mean_.AsTensor(DType::kF32);
  for (int q = 0; q < num_ranks; ++q)
    Pack(q, Share(worker_error, q), Share(values, q));
  group_.AllToAll(bucket_, row_bytes_);
  for (int q = 0; q < num_ranks; ++q)
    Unpack(mean, q, 1.0F / static_cast<float>(num_ranks), q > 0);
  Pack(group_.rank(), owner_error_.AsTensor(DType::kF32), mean);
  group_.AllGather(bucket_, row_bytes_);
  for (int q = 0; q < num_ranks; ++q)
    Unpack(Share(values, q), q, 1, false);
}

}  // namespace dsat::engine
