// Predicts how long a step takes: three clocks advance with the instructions that the executor runs
// on the counting backend, at given speeds.
//
// The clock of the rank counts computing, copies and the issuing of work. The clock of the link
// counts collectives, which run concurrently if the plan overlaps. The clock of the disk counts
// reads and writes, which always run concurrently. kWait and kAwait make the rank wait for another
// clock.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/io/async_file.h"
#include "engine/plan/plan.h"
#include "engine/runtime/engine.h"

namespace dsat::engine {

// The speeds of one rank while all ranks work, per second; 0 means that the work takes no time.
struct Speeds {
  double flops = 0;         // Matrix multiplications of the device.
  double device_bytes = 0;  // Device memory, read or written by an optimizer or a layer.
  double host_bytes = 0;    // Host memory, by an optimizer there: this rank's share.
  double copy_bytes = 0;    // Between device and host, one way.
  double link_bytes = 0;    // Sent to the next rank.
  double read_bytes = 0;    // Disk: this rank's share.
  double write_bytes = 0;
  double call_seconds = 0;  // The time of a collective or message, besides its bytes.
  // Forward and backward, and norm and update, compute this many times as long.
  double compute_times = 1, update_times = 1;
};

// The time of a step on the rank's clock, by kind of work, in ms.
struct StepTime {
  double compute_ms = 0;        // Forward and backward, what is computed again included.
  double update_ms = 0;         // Gradient norm and optimizer.
  double copy_ms = 0;           // Between device and host.
  double communication_ms = 0;  // Waiting for collectives and messages.
  double disk_ms = 0;           // Waiting for the disk.
  double bubble_ms = 0;         // Pipeline stages that wait for others.
  double passes_ms = 0;         // All of the above that is part of forward and backward passes.
  // How long the link and the disk were busy. The part without waiting is hidden by computing.
  double link_busy_ms = 0;
  double disk_busy_ms = 0;

  double total_ms() const {
    return compute_ms + update_ms + copy_ms + communication_ms + disk_ms + bubble_ms;
  }
};

class Timeline {
 public:
  // Counts what `engine` does from now on. `kernels` are all kernels of the engine. Both must
  // outlive this.
  Timeline(const Engine& engine, const Kernels& kernels, const DsConfig& config,
           const Speeds& speeds);

  // To be called after each instruction of one step.
  void Ran(const Instruction& instruction);

  // The time of the instructions so far. In a pipeline of p stages, m micro-batches take
  // (m + p - 1) / m times as long as one stage works (Narayanan et al. 2021, section 2.2).
  StepTime time() const;

 private:
  // Everything that costs time, counted so far.
  struct Counts {
    int64_t flops = 0;
    int64_t moved_bytes = 0;
    TierTraffic tiers;
    AioTraffic disk;
    Traffic sent;
  };
  Counts CountsNow() const;
  void Compute(const Instruction& instruction, const Counts& counts);
  void Communicate(const Instruction& instruction, const Counts& counts);
  void UseDisk(const Instruction& instruction, const Counts& counts);
  double TransferMs(const Transfer& transfer) const;
  double UpdateMs(const SubGroup& group) const;
  double NormMs() const;
  // The time to move so many bytes of each element of the sub-group where its gradients rest.
  double MemoryMs(const SubGroup& group, int64_t elem_bytes) const;
  void Spend(double StepTime::*what, double ms);
  void WaitUntil(double StepTime::*what, double ms);

  const Engine& engine_;
  const Plan& plan_;
  const Kernels& kernels_;
  const DsConfig& config_;
  const Speeds speeds_;
  Counts counts_;
  StepTime time_;
  double now_ms_ = 0;
  double link_free_ms_ = 0;
  double disk_free_ms_ = 0;
  std::vector<double> arrives_ms_;     // By transfer.
  std::vector<double> state_done_ms_;  // By sub-group.
  std::vector<double> slice_done_ms_;  // By unit.
};

}  // namespace dsat::engine
