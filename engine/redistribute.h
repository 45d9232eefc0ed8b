// Moves model state from one placement to another: pack a bucket, one collective, unpack.
#ifndef DSAT_ENGINE_REDISTRIBUTE_H_
#define DSAT_ENGINE_REDISTRIBUTE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/background.h"
#include "engine/comm/process_group.h"
#include "engine/memory/arena.h"
#include "engine/plan/plan.h"
#include "engine/unit_state.h"

namespace dsat::engine {

// Bytes of communication buckets, counted in the arena for as long as this lives.
class BucketCharge {
 public:
  BucketCharge(Arena& arena, int64_t bytes) : arena_(arena), bytes_(bytes) {
    arena.Charge(bytes, "communication buckets");
  }
  BucketCharge(const BucketCharge&) = delete;
  BucketCharge& operator=(const BucketCharge&) = delete;
  ~BucketCharge() { arena_.Discharge(bytes_); }

 private:
  Arena& arena_;
  int64_t bytes_;
};

class Redistributor {
 public:
  // Allocates the plan's buckets (a collective call) and charges them to the arena; none with one
  // rank. All arguments must outlive this. Throws OutOfMemory before it allocates any.
  Redistributor(const Plan& plan, UnitStates& states, ProcessGroup& group, Kernels& kernels,
                Arena& arena);
  Redistributor(const Redistributor&) = delete;
  Redistributor& operator=(const Redistributor&) = delete;
  // The instructions kPack, kStart and kWait of the plan, in its order.
  void Pack(int transfer, int unit);
  void Start(int transfer);
  void Wait(int transfer);

 private:
  // Row `row` of the transfer's bucket.
  Tensor Row(const Transfer& transfer, int row) const;
  void Run(const Transfer& transfer);
  // Segment of the bucket, from element `begin` of its rows, to where it belongs.
  void Unpack(const Transfer& transfer, const Segment& segment, int64_t begin);

  const Plan& plan_;
  UnitStates& states_;
  ProcessGroup& group_;
  Kernels& kernels_;
  BucketCharge charge_;
  std::vector<CommBuffer> buckets_;
  std::vector<int64_t> tickets_;            // Per transfer; with overlap only.
  std::unique_ptr<Background> background_;  // With overlap only. Last: it ends first.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_REDISTRIBUTE_H_
