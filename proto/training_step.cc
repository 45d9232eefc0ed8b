// A line of a training's metrics.jsonl.
#include "proto/training_step.h"

#include <limits>

#include "base/json.h"

namespace dsat {
namespace {

double NumberOrNan(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

Json ToJson(const TrainingStep& step) {
  if (step.validated) return {{"step", step.step}, {"validation_loss", step.loss}};
  return {{"step", step.step},
          {"loss", step.loss},
          {"lr", step.lr},
          {"grad_norm", step.grad_norm},
          {"loss_scale", step.loss_scale},
          {"skipped", step.skipped},
          {"throughput", step.samples_per_s},
          {"tokens_per_second", step.tokens_per_s},
          {"latency_ms", step.latency_ms},
          {"peak_bytes", step.peak_bytes}};
}

TrainingStep TrainingStepFromJson(const Json& json) {
  TrainingStep step{.step = IntegerIn(json.at("step"))};
  step.validated = json.contains("validation_loss");
  if (step.validated) {
    step.loss = NumberOrNan(json, "validation_loss");
    return step;
  }
  step.loss = NumberOrNan(json, "loss");
  step.lr = NumberOrNan(json, "lr");
  step.grad_norm = NumberOrNan(json, "grad_norm");
  step.loss_scale = NumberOrNan(json, "loss_scale");
  step.skipped = json.at("skipped");
  step.samples_per_s = NumberOrNan(json, "throughput");
  step.tokens_per_s = NumberOrNan(json, "tokens_per_second");
  step.latency_ms = NumberOrNan(json, "latency_ms");
  step.peak_bytes = IntegerIn(json.at("peak_bytes"));
  return step;
}

}  // namespace dsat
