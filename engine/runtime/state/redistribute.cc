// Moves model state from one placement to another.
//
// With overlap three threads, and so three streams of a device, work in parallel: this rank's own
// computes, packs and unpacks; the background's brings slices from host memory into buckets and
// runs collectives; the copies' brings what has arrived to host memory. They hand buckets to each
// other by events.
#include "engine/runtime/state/redistribute.h"

#include <algorithm>
#include <numeric>

namespace dsat::engine {

Redistributor::Redistributor(const Plan& plan, UnitStates& states, ProcessGroup& group,
                             DType grad_dtype, double predivide_factor)
    : plan_(plan),
      states_(states),
      group_(group),
      grad_dtype_(grad_dtype),
      predivide_factor_(predivide_factor),
      charge_(ChargeBuckets(states.memory().device, AllBucketBytes())),
      buckets_(plan.bucket_row_elems.size()) {
  DSAT_CHECK(plan.world_size == group.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const int64_t row_elems = plan.bucket_row_elems[i];
    if (row_elems > 0) buckets_[i] = group.Allocate(BucketBytes(row_elems));
  }
  // Counting takes no time in which something else could run.
  const bool counts = states.memory().device.kind() == Arena::Kind::kCounting;
  if (!plan.overlap || plan.transfers.empty() || counts) return;
  background_ = std::make_unique<Background>();
  copies_ = std::make_unique<Background>();
}

// A bucket holds parameters or gradients: the wider type is never too small.
int64_t Redistributor::BucketBytes(int64_t row_elems) const {
  const int64_t elem_bytes = std::max(BytesPerElem(states_.dtype()), BytesPerElem(grad_dtype_));
  return row_elems * plan_.world_size * elem_bytes;
}

int64_t Redistributor::AllBucketBytes() const {
  const std::vector<int64_t>& rows = plan_.bucket_row_elems;
  return BucketBytes(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
}

Tensor Redistributor::Row(const Transfer& transfer, int row) const {
  const Tensor bucket = {buckets_[transfer.bucket].data, transfer.row_elems * plan_.world_size,
                         CommDType(transfer)};
  return bucket.Slice(row * transfer.row_elems, transfer.row_elems);
}

int Redistributor::NumFilledRows(const Transfer& transfer) const {
  return buckets_[transfer.bucket].data == nullptr ? 0 : group_.size();
}

void Redistributor::Pack(const Transfer& transfer, int unit) {
  Kernels& kernels = states_.memory().kernels;
  int64_t begin = 0;  // In the row.
  for (const Segment& segment : transfer.segments) {
    if (segment.unit == unit) {
      const auto part_of = [&](const Tensor& slice) {
        return slice.Slice(segment.offset, segment.num_elems);
      };
      const auto part_of_row = [&](int row) {
        return Row(transfer, row).Slice(begin, segment.num_elems);
      };
      if (transfer.state == State::kParam) {
        const Tensor part = part_of(states_.ParamSlice(unit));
        PackParam(transfer, unit, part_of_row(group_.rank()), part);
        return;
      }
      const int64_t slice_elems = states_.SliceElems(unit);
      const Tensor grad = states_.GradToReduce(unit);
      for (int q = 0; q < NumFilledRows(transfer); ++q) {
        kernels.Run(op::Cast{part_of_row(q), part_of(grad.Slice(q * slice_elems, slice_elems))});
        if (predivide_factor_ == 1) continue;
        kernels.Run(op::Scale{part_of_row(q), static_cast<float>(1 / predivide_factor_)});
      }
    }
    begin += segment.num_elems;
  }
}

// Packs the slice. A slice that rests in host memory until it is updated can be copied later; the
// memory of a slice from disk goes before the collective runs.
void Redistributor::PackParam(const Transfer& transfer, int unit, const Tensor& place,
                              const Tensor& slice) {
  Kernels& kernels = states_.memory().kernels;
  const Tier tier = plan_.units[unit].param.tier;
  if (tier == Tier::kDevice) return kernels.Run(op::Cast{place, slice});
  const bool later = background_ != nullptr && tier == Tier::kHost;
  later ? under_way_[&transfer].parts.push_back({place, slice})
        : kernels.stream().CopyToDevice(place, slice);
}

void Redistributor::Start(const Transfer& transfer) {
  if (background_ == nullptr) return Run(transfer);
  UnderWay& entry = under_way_[&transfer];
  const StreamEvent packed = states_.memory().kernels.stream().RecordEvent();
  entry.ticket = background_->Submit(
      [this, &transfer, &entry, packed] { RunInBackground(transfer, entry, packed); });
}

void Redistributor::RunInBackground(const Transfer& transfer, UnderWay& entry,
                                    const StreamEvent& packed) {
  Stream& stream = states_.memory().kernels.stream();
  stream.WaitEvent(packed);
  for (const HostPart& part : entry.parts)
    stream.CopyToDevice(part.place, part.slice, "copies for communication");
  Run(transfer);
  entry.arrived = stream.RecordEvent();
}

void Redistributor::set_trace(Trace* trace) {
  trace_ = trace;
  if (trace != nullptr && background_ != nullptr) lane_ = trace->Lane("communication");
}

TraceEvent Redistributor::EventOf(const Transfer& transfer) const {
  return {.lane = lane_,
          .name = Name(transfer.collective),
          .bytes = Row(transfer, 0).bytes() * plan_.world_size,
          .about = ToString(transfer)};
}

void Redistributor::Run(const Transfer& transfer) {
  const TraceSpan span(trace_, trace_ != nullptr ? EventOf(transfer) : TraceEvent{},
                       &states_.memory().kernels.stream());
  const CommBuffer& bucket = buckets_[transfer.bucket];
  const DType dtype = CommDType(transfer);
  switch (transfer.collective) {
    case Collective::kAllReduce:
      return group_.AllReduce(bucket, dtype, transfer.row_elems);
    case Collective::kReduceScatter:
      return group_.ReduceScatter(bucket, dtype, transfer.row_elems);
    case Collective::kAllGather:
      return group_.AllGather(bucket, transfer.row_elems * BytesPerElem(dtype));
    case Collective::kBroadcasts:
      for (int root = 0; root < group_.size(); ++root)
        group_.Broadcast(bucket, dtype, transfer.row_elems, root);
      return;
    case Collective::kAllToAll:
      DSAT_CHECK(false, "{}", ToString(transfer));
  }
}

void Redistributor::Wait(const Transfer& transfer) {
  if (background_ != nullptr) {
    Stream& stream = states_.memory().kernels.stream();
    const TraceSpan span(trace_, {.lane = Trace::kCompute, .name = "wait for communication"},
                         &stream);
    const auto entry = under_way_.find(&transfer);
    background_->Wait(entry->second.ticket);
    arrived_ = std::move(entry->second.arrived);
    under_way_.erase(entry);
    stream.WaitEvent(arrived_);
  }
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
    return KeepGrad(transfer, segment, part_of_row(group_.rank()));
  }
  const bool is_param = transfer.state == State::kParam;
  const Tensor whole =
      is_param ? states_.GatherTarget(segment.unit) : states_.GradToReduce(segment.unit);
  for (int q = 0; q < NumFilledRows(transfer); ++q) {
    const int64_t offset = q * states_.SliceElems(segment.unit) + segment.offset;
    states_.memory().kernels.Run(op::Cast{whole.Slice(offset, segment.num_elems), part_of_row(q)});
  }
}

// Into this rank's gradient slice, on whatever tier it is.
void Redistributor::KeepGrad(const Transfer& transfer, const Segment& segment, const Tensor& row) {
  const Memory& memory = states_.memory();
  const Tensor part = states_.GradSlice(segment.unit).Slice(segment.offset, segment.num_elems);
  const auto keep = [&](Kernels& kernels, const Tensor& source) {
    transfer.accumulate ? kernels.Run(op::Accumulate{part, source})
                        : kernels.Run(op::Cast{part, source});
  };
  if (plan_.units[segment.unit].reduced_grad_tier() == Tier::kDevice)
    return keep(memory.kernels, row);
  const Buffer staged = memory.host.Allocate(row.dtype, row.num_elems, "gradients on their way");
  const Tensor on_host = staged.AsTensor(row.dtype);
  CopyToHost(on_host, row);
  keep(memory.host_kernels, on_host);
}

// On a stream that need not first compute all that this rank's own has been asked for.
void Redistributor::CopyToHost(const Tensor& host, const Tensor& row) {
  Stream& stream = states_.memory().kernels.stream();
  if (copies_ == nullptr) return stream.CopyToHost(host, row);
  copies_->Wait(copies_->Submit([&] {
    stream.WaitEvent(arrived_);
    stream.CopyToHost(host, row);
  }));
}

}  // namespace dsat::engine
