// Moves model state from one placement to another: pack a bucket, one collective, unpack.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/core/arena.h"
#include "engine/core/trace.h"
#include "engine/plan/plan.h"
#include "engine/runtime/state/background.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// Counts the bytes of communication buckets (Arena::Charge).
inline Buffer ChargeBuckets(Arena& arena, int64_t bytes) {
  return arena.Charge(bytes, "communication buckets");
}

class Redistributor {
 public:
  // Allocates the plan's buckets (a collective call) and charges them to the arena; none if it
  // moves nothing. Gradients are sent as `grad_dtype`, divided by `predivide_factor`; parameters in
  // their own dtype. All arguments must outlive this. Throws OutOfMemory before it allocates any.
  Redistributor(const Plan& plan, UnitStates& states, ProcessGroup& group, DType grad_dtype,
                double predivide_factor);
  Redistributor(const Redistributor&) = delete;
  Redistributor& operator=(const Redistributor&) = delete;
  // Run the instructions kPack, kStart and kWait in the order of a plan: the constructor's plan, or
  // one whose transfers fit the buckets of that plan.
  void Pack(const Transfer& transfer, int unit);
  void Start(const Transfer& transfer);
  void Wait(const Transfer& transfer);
  // From here on `trace` records collectives, on a lane of their own if they run concurrently,
  // and the waiting for them. nullptr ends it. REQUIRES: no collective is under way.
  void set_trace(Trace* trace);

 private:
  // A slice that rests in host memory and its place in a bucket.
  struct HostPart {
    Tensor place;
    Tensor slice;
  };
  struct UnderWay {
    std::vector<HostPart> parts;  // Packed, to be copied before the collective.
    int64_t ticket = 0;
    StreamEvent arrived;  // The end of the collective. Set by the background thread.
  };

  // The type in which the transfer sends its state.
  DType CommDType(const Transfer& transfer) const {
    return transfer.state == State::kParam ? states_.dtype() : grad_dtype_;
  }
  void PackParam(const Transfer& transfer, int unit, const Tensor& place, const Tensor& slice);
  int64_t BucketBytes(int64_t row_elems) const;
  int64_t AllBucketBytes() const;
  // Row `row` of the transfer's bucket.
  Tensor Row(const Transfer& transfer, int row) const;
  // 0 for a bucket that is only counted, whatever the number of ranks.
  int NumFilledRows(const Transfer& transfer) const;
  void Run(const Transfer& transfer);
  // Copies what the bucket still lacks and calls Run, on the background thread.
  void RunInBackground(const Transfer& transfer, UnderWay& entry, const StreamEvent& packed);
  TraceEvent EventOf(const Transfer& transfer) const;
  // Segment of the bucket, from element `begin` of its rows, to where it belongs.
  void Unpack(const Transfer& transfer, const Segment& segment, int64_t begin);
  void KeepGrad(const Transfer& transfer, const Segment& segment, const Tensor& row);
  void CopyToHost(const Tensor& host, const Tensor& row);

  const Plan& plan_;
  UnitStates& states_;
  ProcessGroup& group_;
  const DType grad_dtype_;
  const double predivide_factor_;
  Buffer charge_;
  std::vector<CommBuffer> buckets_;
  Trace* trace_ = nullptr;
  int lane_ = Trace::kCompute;
  StreamEvent arrived_;  // The end of the transfer that is unpacked.
  // With overlap only: the transfers that are packed or run, the thread of collectives, and the
  // thread of copies that wait for no collective. Declared last, so that they end first.
  std::map<const Transfer*, UnderWay> under_way_;
  std::unique_ptr<Background> background_;
  std::unique_ptr<Background> copies_;
};

}  // namespace dsat::engine
