// A plan: everything that one optimizer step does on a rank, as data.
//
// A unit is a layer's parameters, packed into one flat vector that is padded so that it splits into
// P equal slices. A transfer is one collective call over a bucket of segments of units: a move of
// state from one placement to another (parameters shard -> replicate, gradients partial -> shard or
// replicate). The plan is the same on every rank of a data-parallel group: this is what keeps
// collectives in step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/placement.h"

namespace dsat::engine {

// Slices start at multiples of this many elements, which are whole cache lines and vectors.
inline constexpr int64_t kAlignElems = 16;

enum class Op : uint8_t {
  // Computing, by micro-batch.
  kLoadBatch,   // Micro-batch `micro_batch` from the data.
  kForward,     // The unit's forward; its output is the next unit's input.
  kRecompute,   // The forward again, from the kept input, for what backward needs.
  kBackward,    // The unit's backward; allocates whole-size gradients when it writes them.
  kDropSaved,   // Frees what the unit's forward kept for its backward.
  kDropInput,   // Frees the unit's input.
  kDropGrad,    // Frees the gradient of the unit's input: no unit below it is trained.
  kStoreInput,  // Moves the unit's input to host memory.
  kFetchInput,  // Moves the unit's input back to the device.
  // Pipelines: messages between this stage and the stages beside it.
  kReceiveInput,  // Receives the unit's input from the previous stage.
  kSendOutput,    // Sends the unit's output to the next stage and frees it.
  kReceiveGrad,   // Receives the gradient of the unit's output from the next stage.
  kSendGrad,      // Sends the gradient of the unit's input to the previous stage, frees it.
  kSendOutputReceiveGrad,  // Both at once, where these messages cross.
  kSendGradReceiveInput,   // Both at once, where these messages cross.
  // Moving state.
  kPack,        // Copies this rank's part of the unit's segment into the transfer's bucket.
  kStart,       // Starts the transfer's collective.
  kWait,        // Waits for the collective and unpacks the bucket, which is free again.
  kFreeParam,   // Frees the gathered copy of a unit whose parameters are sharded.
  kReadSlice,   // Starts to read the unit's slice from disk into host memory.
  kWriteSlice,  // Starts to write the updated slice to disk.
  kAwaitSlice,  // Waits for the read or write; frees the memory after a write.
  kFreeSlice,   // Frees the copy in host memory of a slice that was read.
  kFoldGrad,    // Adds the whole-size gradient to the sum of another dtype and frees it.
  kFreeGrad,    // Frees the whole-size gradient of a unit whose gradient is now sharded.
  // The step.
  kSumTied,          // Sums the unit's gradient over the pipeline stages that hold the unit.
  kNorm,             // The norm of all gradients, for clipping and the overflow check.
  kTrustRatios,      // LAMB: moments of all sub-groups, then the trust ratio of every parameter.
  kAverageMomentum,  // 1-bit Adam: the sub-group's momentum, then its compressed average.
  kReadState,        // Starts to read the sub-group's optimizer state from disk.
  kUpdate,           // Updates the sub-group; after the last one of a unit, frees its gradients.
  kWriteState,       // Starts to write the sub-group's optimizer state to disk.
  kAwaitState,       // Waits for the read or write; frees the memory after a write.
  kMeanLoss,         // The mean loss over all ranks; also the barrier between steps.
};

// The time counter that an instruction is charged to.
enum class Phase : uint8_t { kForward, kBackward, kStep };

struct Instruction {
  Op op;
  Phase phase;
  int unit = -1;
  int micro_batch = -1;
  int transfer = -1;   // Index in Plan::transfers.
  int sub_group = -1;  // Index in Plan::sub_groups.
  // Where messages cross: the micro-batch of the message that is sent. `micro_batch` is that of the
  // message that is received.
  int sent_micro_batch = -1;
  bool operator==(const Instruction&) const = default;
};

// Elements [offset, offset + num_elems) of each of the P slices of a unit.
struct Segment {
  int unit = 0;
  int64_t offset = 0;
  int64_t num_elems = 0;
  bool operator==(const Segment&) const = default;
};

enum class State : uint8_t { kParam, kGrad };
enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcasts,  // An all-gather as one broadcast per rank.
  kAllToAll,
};

// One collective call. The bucket has P rows; row q holds the segments of slice q, one after
// another.
struct Transfer {
  State state = State::kParam;
  Collective collective = Collective::kAllGather;
  Placement to = Placement::kReplicate;
  bool accumulate = false;  // Adds to the gradients of earlier micro-batches.
  int bucket = 0;           // Index in Plan::bucket_row_elems.
  std::vector<Segment> segments;
  int64_t row_elems = 0;  // Sum of the segments' lengths.
};

// The elements [offset, offset + num_elems) of a unit's optimizer home, which one optimizer call
// updates.
struct SubGroup {
  int unit = 0;
  int64_t offset = 0;
  int64_t num_elems = 0;
  bool on_disk = false;
  bool operator==(const SubGroup&) const = default;
};

// Where a unit's state rests on this stage.
struct UnitPlan {
  Home param;
  Tier optimizer_tier = Tier::kDevice;
  std::vector<int> holders;   // The pipeline stages that hold a copy of the unit, in order.
  bool present = false;       // This stage is one of them.
  bool trained = false;       // The unit has gradients and optimizer state here.
  bool writes_grads = false;  // Its backward writes gradients: its own or those of borrowed units.
  bool counted = false;       // The norm counts this copy of the unit, and no other.
  int64_t num_elems = 0;      // Padded; 0 if the unit is not present.
  Tier reduced_grad_tier() const { return ReducedGradTier(optimizer_tier); }
};

struct Plan {
  int world_size = 1;  // The size of the data-parallel group.
  int first_unit = 0;  // This stage computes units [first_unit, end_unit).
  int end_unit = 0;
  std::vector<UnitPlan> units;
  Placement grad_home = Placement::kPartial;
  Placement optimizer_home = Placement::kReplicate;
  bool reduces_grads = true;              // false: every rank keeps its own gradients.
  bool overlap = false;                   // Collectives run concurrently with computing.
  int num_in_flight = 1;                  // Micro-batches between their forward and backward.
  std::vector<int64_t> bucket_row_elems;  // Row length of each communication buffer; 0 = unused.
  std::vector<Transfer> transfers;
  int64_t num_trust_ratios = 0;  // LAMB's, one per parameter of the model; else 0.
  std::vector<SubGroup> sub_groups;
  std::vector<Instruction> instructions;
};

// One collective call of an instruction, in place on a buffer of one row per rank.
struct CollectiveCall {
  enum class Group : uint8_t { kDataParallel, kTied };  // kTied: the stages that hold the unit.
  enum class Elem : uint8_t { kParam, kGrad, kF32, kByte };

  Collective collective;
  Group group = Group::kDataParallel;
  // kGrad is the communication dtype in a transfer, and the dtype that gradients accumulate in
  // between tied units.
  Elem elem = Elem::kF32;
  int64_t row_elems = 0;
};

// Every collective that the instruction issues, in order. What is not listed here is not issued:
// this is the law of collectives (engine/comm/process_group.h). The numbers that kNorm gathers and
// kMeanLoss adds up are no model state and are not listed; nor are messages between stages.
std::vector<CollectiveCall> CallsOf(const Plan& plan, const Instruction& instruction);

// The row of the buffer in which `ranks` ranks sum `num_elems` elements.
constexpr int64_t SummedRowElems(int64_t num_elems, int ranks) {
  return (num_elems + ranks - 1) / ranks;
}
// A row of a compressed average of `num_elems` numbers: a scale, then one bit per element of the
// row's share, both aligned to kCompressedHeaderBytes. REQUIRES: `ranks` divides num_elems.
inline constexpr int64_t kCompressedHeaderBytes = 8;
constexpr int64_t CompressedRowBytes(int64_t num_elems, int ranks) {
  const int64_t sign_bytes = num_elems / ranks / 8;
  return kCompressedHeaderBytes + (sign_bytes + kCompressedHeaderBytes - 1) /
                                      kCompressedHeaderBytes * kCompressedHeaderBytes;
}

// The stage that the instruction sends to or receives from, relative to this one: 1 is the next
// stage, -1 the previous one. 0 if the instruction has no message.
int StageOffset(Op op);

// Whether the device does something for the instruction, on the stream of the thread that runs it.
bool AsksDevice(const Instruction& i, const Plan& plan);

// "forward", "reduce-scatter", "backward".
const char* Name(Op op);
const char* Name(Collective collective);
const char* Name(Phase phase);

// For people and tests: "forward(0.2)" is micro-batch 0, unit 2; "start(t3)" is transfer 3;
// "send_output_receive_grad(1.2,0.2)" sends for micro-batch 1 and receives for micro-batch 0.
std::string ToString(const Instruction& instruction);
// "reduce-scatter grad to shard, bucket 0, rows of 48: unit 1 [0, +32), unit 0 [16, +16)".
std::string ToString(const Transfer& transfer);

}  // namespace dsat::engine
