// The mean over ranks at one bit per element: the all-reduce of 1-bit Adam (Tang et al. 2021).
//
// Every rank owns a share of the elements. Each rank sends the signs of every share and one scale
// to the owner of the share, which averages what it receives and sends the signs and the scale of
// the mean to all ranks. Both steps add the error of the compression to the values of the next
// round. This is DeepSpeed's CompressedBackend, except that every share has a scale of its own.
#pragma once

#include <cstdint>

#include "engine/backend/optimizer_kernels.h"
#include "engine/comm/process_group.h"
#include "engine/core/arena.h"

namespace dsat::engine {

class CompressedAverage {
 public:
  // A collective call. Vectors of `num_elems`, which must be a multiple of 8 per rank. The arena is
  // charged with num_elems (1 + 2 / P) f32 numbers and the bucket. All arguments must outlive this.
  // Throws OutOfMemory.
  CompressedAverage(int64_t num_elems, ProcessGroup& group, Kernels& kernels, Arena& arena);

  // values (num_elems) f32 becomes about its mean over the ranks, the same bits on all of them. A
  // collective call: one all-to-all and one all-gather of 1 / 32 of its bytes.
  void Run(Tensor values);

  // Sets the errors, which the next round would add to its values, to zero.
  void ResetErrors();

 private:
  Tensor Share(const Tensor& values, int rank) const {
    return values.Slice(rank * share_elems_, share_elems_);
  }
  uint8_t* Signs(int row) const;
  float* Scale(int row) const;
  // Writes the signs of values + error and their scale to a row of the bucket, and the remaining
  // error to `error`.
  void Pack(int row, const Tensor& error, const Tensor& values);
  // values = or += the numbers in a row, times `factor`.
  void Unpack(const Tensor& values, int row, float factor, bool accumulate);

  const int64_t share_elems_;
  const int64_t row_bytes_;  // A scale, then signs.
  ProcessGroup& group_;
  Kernels& kernels_;
  Buffer worker_error_;  // (num_elems)
  Buffer owner_error_;   // (share_elems_)
  Buffer mean_;          // (share_elems_)
  Buffer charge_;
  CommBuffer bucket_;
};

}  // namespace dsat::engine
