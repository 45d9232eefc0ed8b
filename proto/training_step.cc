// A line of a training's metrics.jsonl.
#include "proto/training_step.h"

#include <limits>
#include <utility>

#include "base/json.h"

namespace dsat {
namespace {

// The numbers of an optimizer step by their keys. Those that are not finite are null in JSON.
constexpr std::pair<const char*, double TrainingStep::*> kNumbers[] = {
    {"loss", &TrainingStep::loss},
    {"lr", &TrainingStep::lr},
    {"grad_norm", &TrainingStep::grad_norm},
    {"loss_scale", &TrainingStep::loss_scale},
    {"throughput", &TrainingStep::samples_per_s},
    {"tokens_per_second", &TrainingStep::tokens_per_s},
    {"latency_ms", &TrainingStep::latency_ms}};

double NumberOrNan(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

Json ToJson(const TrainingStep& step) {
  if (step.validated) return {{"step", step.step}, {"validation_loss", step.loss}};
  Json json = {{"step", step.step}, {"skipped", step.skipped}, {"peak_bytes", step.peak_bytes}};
  for (const auto& [key, number] : kNumbers)
    json[key] = step.*number;
  return json;
}

TrainingStep TrainingStepFromJson(const Json& json) {
  TrainingStep step{.step = IntegerIn(json.at("step"))};
  step.validated = json.contains("validation_loss");
  if (step.validated) {
    step.loss = NumberOrNan(json.at("validation_loss"));
    return step;
  }
  for (const auto& [key, number] : kNumbers)
    step.*number = NumberOrNan(json.at(key));
  step.skipped = json.at("skipped");
  step.peak_bytes = IntegerIn(json.at("peak_bytes"));
  return step;
}

}  // namespace dsat
