// Moves model state from one placement to another.
#include "engine/redistribute.h"

namespace dsat::engine {
namespace {

int64_t BucketBytes(const Plan& plan, DType dtype) {
  int64_t row_elems = 0;
  for (const int64_t elems : plan.bucket_row_elems)
    row_elems += elems;
  return row_elems * plan.world_size * BytesPerElem(dtype);
}

}  // namespace

Redistributor::Redistributor(const Plan& plan, UnitStates& states, ProcessGroup& group,
                             Kernels& kernels, Arena& arena)
    : plan_(plan),
      states_(states),
      group_(group),
      kernels_(kernels),
      charge_(arena, BucketBytes(plan, states.dtype())),
      buckets_(plan.bucket_row_elems.size()),
      tickets_(plan.transfers.size()) {
  DSAT_CHECK(plan.world_size == group.size());
  const int64_t row_bytes = plan.world_size * BytesPerElem(states.dtype());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const int64_t row_elems = plan.bucket_row_elems[i];
    if (row_elems > 0) buckets_[i] = group.Allocate(row_elems * row_bytes);
  }
  if (plan.overlap && !plan.transfers.empty()) background_ = std::make_unique<Background>();
}

Tensor Redistributor::Row(const Transfer& transfer, int row) const {
  const Tensor bucket = {buckets_[transfer.bucket].data, transfer.row_elems * plan_.world_size,
                         states_.dtype()};
  return bucket.Slice(row * transfer.row_elems, transfer.row_elems);
}

void Redistributor::Pack(int transfer_index, int unit) {
  const Transfer& transfer = plan_.transfers[transfer_index];
  int64_t begin = 0;  // In the row.
  for (const Segment& segment : transfer.segments) {
    if (segment.unit == unit) {
      const auto pack = [&](int row, const Tensor& slice) {
        kernels_.Cast(Row(transfer, row).Slice(begin, segment.num_elems),
                      slice.Slice(segment.offset, segment.num_elems));
      };
      if (transfer.state == State::kParam) {
        pack(group_.rank(), states_.ParamSlice(unit));
        return;
      }
      const int64_t slice_elems = states_.SliceElems(unit);
      const Tensor grad = states_.Grad(unit);
      for (int q = 0; q < group_.size(); ++q)
        pack(q, grad.Slice(q * slice_elems, slice_elems));
    }
    begin += segment.num_elems;
  }
}

void Redistributor::Start(int transfer_index) {
  const Transfer& transfer = plan_.transfers[transfer_index];
  if (background_ == nullptr) return Run(transfer);
  tickets_[transfer_index] = background_->Submit([this, &transfer] { Run(transfer); });
}

void Redistributor::Run(const Transfer& transfer) {
  const CommBuffer& bucket = buckets_[transfer.bucket];
  switch (transfer.collective) {
    case Collective::kAllReduce:
      return group_.AllReduce(bucket, states_.dtype(), transfer.row_elems);
    case Collective::kReduceScatter:
      return group_.ReduceScatter(bucket, states_.dtype(), transfer.row_elems);
    case Collective::kAllGather:
      return group_.AllGather(bucket, states_.dtype(), transfer.row_elems);
  }
}

void Redistributor::Wait(int transfer_index) {
  const Transfer& transfer = plan_.transfers[transfer_index];
  if (background_ != nullptr) background_->Wait(tickets_[transfer_index]);
  int64_t begin = 0;
  for (const Segment& segment : transfer.segments) {
    Unpack(transfer, segment, begin);
    begin += segment.num_elems;
  }
}

void Redistributor::Unpack(const Transfer& transfer, const Segment& segment, int64_t begin) {
  const auto part_of_row = [&](int row) {
    return Row(transfer, row).Slice(begin, segment.num_elems);
  };
  if (transfer.to == Placement::kShard) {
    const Tensor part = states_.GradSlice(segment.unit).Slice(segment.offset, segment.num_elems);
    if (transfer.accumulate) {
      kernels_.Accumulate(part, part_of_row(group_.rank()));
    } else {
      kernels_.Cast(part, part_of_row(group_.rank()));
    }
    return;
  }
  const bool is_param = transfer.state == State::kParam;
  const Tensor whole = is_param ? states_.GatherTarget(segment.unit) : states_.Grad(segment.unit);
  for (int q = 0; q < group_.size(); ++q) {
    const int64_t offset = q * states_.SliceElems(segment.unit) + segment.offset;
    kernels_.Cast(whole.Slice(offset, segment.num_elems), part_of_row(q));
  }
}

}  // namespace dsat::engine
