// The interpreter of plans. During a step, nothing else issues collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/stream.h"
#include "engine/core/trace.h"
#include "engine/model/layer.h"
#include "engine/runtime/executor/batch_loader.h"
#include "engine/runtime/executor/pipeline.h"
#include "engine/runtime/executor/step_result.h"
#include "engine/runtime/optimizer/grad_norm.h"
#include "engine/runtime/optimizer/updater.h"
#include "engine/runtime/state/redistribute.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// One optimizer step, on this rank unless a comment says otherwise.
struct StepInputs {
  int64_t first_sample = 0;        // Index into the data set.
  int64_t update = 1;              // The optimizer's count, 1 at the first.
  OptimizerConfig optimizer = {};  // With the learning rate and betas of this step.
  double loss_scale = 1;
};

// The tensors that one micro-batch keeps on this pipeline stage from its forward to its backward.
struct Activations {
  explicit Activations(size_t num_units)
      : inputs(num_units + 1), inputs_on_host(num_units), saved(num_units) {}

  std::vector<Buffer> inputs;  // Per unit; the last is the output of the last unit.
  std::vector<Buffer> inputs_on_host;
  std::vector<Saved> saved;
  Buffer grad;             // The gradient of the output of the unit whose backward comes next.
  int64_t live_bytes = 0;  // Device memory of this step, that of recomputed units included.
};

// The observers of the instructions of all executors of an engine, from the next instruction on.
struct Observers {
  Trace* trace = nullptr;                           // nullptr: none.
  std::function<void(const Instruction&)> on_done;  // Called after each instruction.
};

class Executor {
 public:
  // This rank sums scalars over `groups`, passes messages between their pipeline stages and sums
  // tied gradients with `tied`; model state moves over the Redistributor's group. All arguments
  // must outlive this.
  Executor(const Model& model, const Plan& plan, const DsConfig& config, UnitStates& states,
           Redistributor& redistributor, BatchLoader& loader, const Groups& groups, TiedUnits& tied,
           const Observers& observers);

  // Begin starts the plan from its first instruction. Every Run interprets instructions up to the
  // end of a phase. `batch`, in host memory, replaces the loader's and is copied. Throws
  // OutOfMemory, or what the process groups throw; this executor cannot be used after that.
  void Begin(const StepInputs& inputs);
  void Run(const Batch* batch = nullptr);
  void RunToEnd(const Batch* batch = nullptr);  // Runs until the plan's end.
  // From now on forward passes write logits instead of a loss (LayerContext::logits).
  void PredictInto(Tensor logits) { logits_ = logits; }
  // From now on forward passes compute no loss: *logits becomes each micro-batch's, f32 (rows,
  // classes). nullptr ends it.
  void LeaveLogitsIn(std::vector<float>* logits) { left_logits_ = logits; }
  // Takes the loss of the micro-batch whose forward ran last, and the loss's gradient by these
  // logits, (rows, classes). Throws kInvalidArgument unless there are as many logits.
  void TakeLoss(std::span<const float> logits_grad, double loss);
  // True also before the first Begin.
  bool AtEnd() const { return next_ == plan_.instructions.size(); }
  // REQUIRES: not at the end.
  Phase NextPhase() const { return plan_.instructions[next_].phase; }

  // The results of the phases that have run since Begin, but for latency_ms. The loss, the norm and
  // the times are there only at the end, for which the host has waited for the device.
  const StepResult& result() const { return result_; }
  // The loss of the micro-batch whose forward ran last, on this rank. Waits for the device.
  double MicroBatchLoss();
  // The sum of the losses since Begin over the targets that count, and their number, on this rank;
  // 0 on other pipeline stages than the last. REQUIRES: AtEnd().
  std::pair<double, double> SumOfLosses() const;
  // The micro-batch whose instructions come next; the last micro-batch if none come.
  int micro_batch() const;
  // Forgets what the compression of earlier steps has left over.
  void ResetCompressionErrors() { updater_.ResetCompressionErrors(); }

 private:
  // The instructions that one call of Run has interpreted.
  struct PhaseSpan {
    Phase phase;
    StreamEvent begin, end;  // Times.
  };

  void Execute(const Instruction& instruction);
  void ExecuteCompute(const Instruction& instruction);
  void ExecuteMessage(const Instruction& instruction);
  void ExecuteMove(const Instruction& instruction);
  void ExecuteStep(const Instruction& instruction);
  LayerContext Context(int micro_batch, const std::vector<Tensor>& params,
                       const std::vector<Tensor>& grads);
  void Forward(const Instruction& i);
  // `grads` are those that the unit's backward adds to.
  void Backward(const Instruction& i, const std::vector<Tensor>& grads);
  // Where the device puts the factor of the updates, and the loss of a micro-batch.
  StepScale* DeviceScale() const { return static_cast<StepScale*>(numbers_.data()); }
  double* DeviceLoss(int micro_batch) const;
  // Copies both to the host, which waits for all work that it has given to the device.
  void ReadNumbers();
  void Norm();
  void Update(int sub_group);
  void MeanLoss();
  // The factor that turns a reduced gradient into the mean (or sum) over the ranks of the gradients
  // of the unscaled loss.
  double MeanFactor() const;
  Activations& ActivationsOf(int micro_batch) {
    return activations_[static_cast<size_t>(micro_batch % plan_.num_in_flight)];
  }
  // Memory for the message that the instruction receives, and the message that it sends.
  Buffer& NewReceived(const Instruction& i);
  Buffer& SentBy(int micro_batch, const Instruction& i);
  TraceEvent EventOf(const Instruction& i) const;
  // The factor of the gradient of a micro-batch's loss.
  float LossGradScale() const;
  void ReadLogits();
  // Adds `bytes` to the device memory that the micro-batch's activations occupy.
  void Count(int micro_batch, int64_t bytes);

  const Model& model_;
  const Plan& plan_;
  const DsConfig& config_;
  UnitStates& states_;
  Redistributor& redistributor_;
  BatchLoader& loader_;
  const Groups& groups_;
  TiedUnits& tied_;
  const Observers& observers_;
  int64_t input_bytes_ = 0;   // The message from the stage before, per micro-batch.
  int64_t output_bytes_ = 0;  // The message to the stage after, per micro-batch.
  Updater updater_;
  std::optional<GradNorm> grad_norm_;  // None in an evaluation.
  Buffer numbers_;  // In device memory: a StepScale, then the losses of the micro-batches, f64.

  StepInputs inputs_;
  StepResult result_;
  std::vector<PhaseSpan> spans_;
  std::vector<std::pair<StreamEvent, StreamEvent>> messages_;  // Begin and end.
  size_t next_;
  const Batch* given_batch_ = nullptr;
  Batch batch_;  // In device memory.
  Tensor logits_;
  std::vector<float>* left_logits_ = nullptr;
  LogitsView logits_view_;                // Where they are.
  int last_forward_ = 0;                  // Its micro-batch.
  StepScale scale_;                       // As of the last ReadNumbers, and
  std::vector<double> losses_;            // by micro-batch.
  std::vector<double> num_counted_;       // The targets that count; by micro-batch.
  std::vector<Activations> activations_;  // By micro-batch in flight.
};

}  // namespace dsat::engine
