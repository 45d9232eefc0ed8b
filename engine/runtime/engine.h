// The training engine, which trains a model as a ds_config says, step by step.
//
// Several engines may live in one process, each with resources of its own. An engine does not know
// that it is being tuned. With the counting backend, group and arena, the same code predicts
// instead of training (predict.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/runtime/executor/step_result.h"

namespace dsat::engine {

class CheckpointSave;
class Dataset;
class Trace;
struct Batch;
struct DsConfig;
struct Resources;
struct Traffic;

class Engine {
 public:
  // A collective call. Throws OutOfMemory if the state does not fit (the resources can be used
  // again), kInvalidArgument or kUnimplemented naming the key of a setting that this model or
  // number of ranks does not allow.
  Engine(const Resources& resources, const DsConfig& config, uint64_t seed);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // All calls come from one thread, and the engine's work goes to that thread's stream of the
  // device.
  //
  // All calls up to Predict are collective. They throw OutOfMemory, kUnavailable or
  // kDeadlineExceeded if a rank is gone, kInvalidArgument if the loss scale cannot be lowered
  // further; the engine cannot be used after any of these.
  //
  // In the middle of a step, which Forward, Backward and Step may take in parts, Evaluate, Predict,
  // TrainBatch and the calls that save or load throw kFailedPrecondition.

  // One optimizer step over train_batch_size samples of the data set. Throws kFailedPrecondition if
  // there is no data set.
  StepResult TrainBatch();

  // The same step in parts, with batches of the caller: Forward, Backward and Step for every
  // micro-batch. Forward copies the batch, which is in host memory, and returns this rank's mean
  // loss. Step acts, and returns a result, only at the boundary of gradient accumulation. Throws
  // kFailedPrecondition if the calls come in another order, or in a pipeline, where stages work on
  // several micro-batches at once, and kInvalidArgument if the batch does not fit the model.
  double Forward(const Batch& batch);
  // The batch of the data set that TrainBatch would read for the next micro-batch. It is valid
  // until the next call. Throws kFailedPrecondition as Forward, or if there is no data set.
  const Batch& NextBatch();
  void Backward();

  // The same with a loss of the caller, such as one over the logits of two engines. ForwardLogits
  // computes no loss and returns the logits of this rank's micro-batch, f32 (B * T, classes) in the
  // order of its positions; targets may be absent. Backward takes `loss`, this rank's mean loss of
  // the micro-batch, for StepResult, and its gradient by these logits. As it does with its own
  // loss, the engine takes the mean over ranks and micro-batches, and scales for fp16. Throw as
  // Forward; kFailedPrecondition if the one is called without the other; kInvalidArgument if the
  // gradient has another size; kUnimplemented if the model's last layer leaves no logits
  // (LayerContext::left_logits).
  std::vector<float> ForwardLogits(const Batch& batch);
  void Backward(std::span<const float> logits_grad, double loss);
  std::optional<StepResult> Step();
  // Whether the current micro-batch, or the next one if none has begun, is the last before an
  // update.
  bool IsGradientAccumulationBoundary() const;

  // Mean loss over the targets that count in the samples [0, num_batches * train_batch_size) of
  // `data`, without training. Throws kInvalidArgument if num_batches < 1.
  double Evaluate(const Dataset& data, int64_t num_batches);
  // The same over the samples [0, num_samples): up to rounding it does not depend on the number of
  // ranks and the batch sizes. Throws kInvalidArgument if `data` does not have so many.
  double EvaluateSamples(const Dataset& data, int64_t num_samples);

  // Returns the logits (B, classes) of each row's last position. They are the same on every rank if
  // the batch is. Targets may be absent. Throws kUnimplemented in a pipeline, and kInvalidArgument
  // if the batch does not fit the model.
  std::vector<float> Predict(const Batch& batch);
  // The same of all positions, (B * T, classes), in ranks' order of ForwardLogits.
  std::vector<float> Logits(const Batch& batch);

  // Sets the learning rate, which has an effect only without a scheduler in the config. Throws
  // kInvalidArgument if it is not a finite number >= 0.
  void set_lr(double lr);
  // The learning rate of the next step.
  double lr() const;

  // From the next step on `trace` records steps, instructions, collectives, copies and disk
  // requests, and the work of a GPU's streams. nullptr
  // ends it. The trace must live until then, or as long as the engine. REQUIRES: no step is under
  // way.
  void set_trace(Trace* trace);

  // Calls `on_work` after each instruction of a step or an evaluation, to show that they go on.
  void set_on_work(std::function<void()> on_work);

  int64_t num_steps() const;    // Steps taken, skipped ones included.
  int64_t num_samples() const;  // Trained in these steps, by all ranks.
  int64_t num_skipped_steps() const;
  // The bytes that this rank has sent so far in all of its groups.
  Traffic traffic() const;

  // Writes parameters, optimizer state and `client_state` to <dir>/<tag>/ and the tag to
  // <dir>/latest (engine/runtime/checkpoint/checkpoint.h). `tag` empty: "global_step<steps taken>",
  // as DeepSpeed's. A collective call. Errors name the file; training can continue.
  void SaveCheckpoint(const std::string& dir, const std::string& tag = "",
                      const Json& client_state = Json::object());
  // The same in parallel with training: the state is that of now, and the checkpoint is one after
  // CheckpointSave::Finish (engine/runtime/checkpoint/checkpoint.h).
  std::unique_ptr<CheckpointSave> BeginCheckpoint(const std::string& dir,
                                                  const std::string& tag = "",
                                                  const Json& client_state = Json::object());
  // Continues from <dir>/<tag>, or from the tag in <dir>/latest if `tag` is empty, and returns the
  // client_state. Any number of ranks and any ZeRO stage may have written the checkpoint. A
  // collective call. Throws kNotFound, kInvalidArgument naming what does not fit, or kDataLoss.
  // Nothing of earlier training stays: not even what set_lr has set, or 1-bit Adam's errors.
  Json LoadCheckpoint(const std::string& dir, const std::string& tag = "");
  // Writes the parameters, in the dtype of training, to one safetensors file
  // (engine/runtime/checkpoint/checkpoint.h). Returns false and saves nothing if parameters
  // are sharded and the config does not set stage3_gather_16bit_weights_on_model_save. A collective
  // call.
  bool Save16BitModel(const std::string& dir, const std::string& name = "model.safetensors",
                      bool exclude_frozen = false);

 private:
  friend class EngineInternals;
  class Parts;

  const std::unique_ptr<Parts> parts_;
};

}  // namespace dsat::engine
