// A plan: everything one optimizer step does on every rank, as data.
//
// A unit is a layer's parameters, packed into one flat vector that is padded so that it splits into
// P equal slices. A transfer is one collective call over a bucket of segments of units: a move of
// state from one placement to another (parameters shard -> replicate, gradients partial -> shard or
// replicate). The plan is the same on every rank: this is what keeps collectives in step.
#ifndef DSAT_ENGINE_PLAN_PLAN_H_
#define DSAT_ENGINE_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/placement.h"

namespace dsat::engine {

// Slices start at multiples of so many elements: whole cache lines, whole vectors.
inline constexpr int64_t kAlignElems = 16;

enum class Op : uint8_t {
  kLoadBatch,  // Micro-batch `micro_batch` from the data.
  kForward,    // Unit's forward.
  kBackward,   // Unit's backward; whole-size gradients come into being as they are written.
  kPack,       // This rank's part of the unit's segment into the transfer's bucket.
  kStart,      // The transfer's collective begins.
  kWait,       // It has ended; its bucket is unpacked and free again.
  kFreeParam,  // The gathered copy of a unit whose parameters rest sharded.
  kFreeGrad,   // The whole-size gradient of a unit that now rests sharded.
  kNorm,       // Norm of all gradients: what clipping and the overflow check need.
  kUpdate,     // Optimizer on this rank's part of the unit; frees its gradients.
  kMeanLoss,   // Loss over all ranks; also the barrier between steps.
};

// What the time of an instruction is booked on.
enum class Phase : uint8_t { kForward, kBackward, kStep };

struct Instruction {
  Op op;
  Phase phase;
  int unit = -1;
  int micro_batch = -1;
  int transfer = -1;  // Index in Plan::transfers.
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
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather };

// One collective call. The bucket has P rows; row q holds the segments of slice q, one after
// another.
struct Transfer {
  State state = State::kParam;
  Collective collective = Collective::kAllGather;
  Placement to = Placement::kReplicate;
  bool accumulate = false;  // Adds to what rests there already (gradients of later micro-batches).
  int bucket = 0;           // Index in Plan::bucket_row_elems.
  std::vector<Segment> segments;
  int64_t row_elems = 0;  // Sum of the segments' lengths.
};

struct Plan {
  int world_size = 1;
  std::vector<Placement> param_homes;  // Per unit.
  Placement grad_home = Placement::kPartial;
  Placement optimizer_home = Placement::kReplicate;
  bool overlap = false;                   // Collectives run beside computing.
  std::vector<int64_t> bucket_row_elems;  // Row length of each communication buffer; 0 = unused.
  std::vector<Transfer> transfers;
  std::vector<Instruction> instructions;
};

// One instruction per word, one line per compute instruction or collective, for people and tests:
// "forward(0.2)" is micro-batch 0, unit 2; "start(t3)" is transfer 3.
std::string ToString(const Instruction& instruction);
// "t3: reduce-scatter grad to shard, bucket 0, rows of 48: unit 1 [0, +32), unit 0 [16, +16)".
std::string ToString(const Transfer& transfer, int index);
std::string ToString(const Plan& plan);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_PLAN_PLAN_H_
