// The interpreter of plans. The only place that issues collectives.
#ifndef DSAT_ENGINE_EXECUTOR_H_
#define DSAT_ENGINE_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/batch_loader.h"
#include "engine/lamb.h"
#include "engine/redistribute.h"
#include "engine/unit_state.h"

namespace dsat::engine {

// One optimizer step, on this rank unless said otherwise.
struct StepInputs {
  int64_t step = 0;           // Which samples.
  int64_t update = 1;         // The optimizer's count, 1 at the first.
  OptimizerConfig optimizer;  // With the learning rate and betas of this step.
  double loss_scale = 1;
};
struct StepOutputs {
  double loss = 0;       // Mean over micro-batches and ranks, nats per token.
  double grad_norm = 0;  // Of the averaged gradient, before clipping; the same on all ranks.
  bool skipped = false;  // The norm was not finite: no update was made, on any rank.
  std::array<double, 3> phase_ms = {};  // By Phase.
  int64_t forward_flops = 0;            // All micro-batches.
  int64_t flops = 0;                    // Forward and backward.
  int64_t activation_bytes = 0;  // Kept by the forward passes of one micro-batch for its backward.
};

class Executor {
 public:
  // All arguments must outlive this.
  Executor(const Model& model, const Plan& plan, const DsConfig& config, UnitStates& states,
           Redistributor& redistributor, BatchLoader& loader, ProcessGroup& group, Kernels& kernels,
           Arena& arena);

  // Interprets the plan once. Throws OutOfMemory, or what the process group throws; this executor
  // cannot be used after that.
  StepOutputs Run(const StepInputs& inputs);

 private:
  void Execute(const Instruction& instruction);
  void Forward(int unit);
  void Backward(int unit);
  void Norm();
  void Update(int unit);
  void MeanLoss();
  float LossGradScale() const;
  float GradScale() const;

  const Model& model_;
  const Plan& plan_;
  const DsConfig& config_;
  UnitStates& states_;
  Redistributor& redistributor_;
  BatchLoader& loader_;
  ProcessGroup& group_;
  Kernels& kernels_;
  Arena& arena_;
  std::optional<Lamb> lamb_;  // If it is the optimizer.

  StepInputs inputs_;
  StepOutputs outputs_;
  std::vector<Buffer> inputs_of_;  // Per unit: its input, from its forward to its backward.
  std::vector<Saved> saved_;       // Per unit.
  Buffer output_;                  // Of the last forward; in backward, its gradient.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_EXECUTOR_H_
