// The JSON form of a trial's task.
#include "proto/trial_task.h"

#include <concepts>
#include <type_traits>
#include <utility>

#include "base/enum_names.h"
#include "proto/fields.h"

namespace dsat {
namespace {

constexpr EnumNames<TrialTask::Mode, 6> kModes = {{
    {TrialTask::Mode::kProfile, "profile"},
    {TrialTask::Mode::kMeasure, "measure"},
    {TrialTask::Mode::kSoak, "soak"},
    {TrialTask::Mode::kTrain, "train"},
    {TrialTask::Mode::kEvaluate, "evaluate"},
    {TrialTask::Mode::kGenerate, "generate"},
}};

}  // namespace

std::string ToString(TrialTask::Mode mode) {
  return NameOf(kModes, mode);
}

DSAT_FIELDS(GenerateTask, prompt, max_new_tokens, temperature, top_k, num_samples, json)

DSAT_FIELDS(TraceTask, path, first_step, last_step)

DSAT_FIELDS(TrainingOptions, checkpoint_interval, checkpoint_seconds, keep, keep_best,
            eval_interval, eval_batches)

// T is the struct, const when it is written. The mode goes as text.
template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, TrialTask>
void VisitFields(Visitor& visit, T& task) {
  std::string mode = ToString(task.mode);
  visit("mode", mode);
  if constexpr (!std::is_const_v<T>) task.mode = ParseName(kModes, mode, "task/mode");
  visit("experiment", task.experiment);
  visit("trial", task.trial);
  visit("attempt", task.attempt);
  visit("ds_config", task.ds_config);
  visit("model", task.model);
  visit("data", task.data);
  visit("base_dir", task.base_dir);
  visit("device", task.device);
  visit("device_memory_bytes", task.device_memory_bytes);
  visit("host_memory_bytes", task.host_memory_bytes);
  visit("start_profile_step", task.start_profile_step);
  visit("end_profile_step", task.end_profile_step);
  visit("fixed_window", task.fixed_window);
  visit("give_up_below", task.give_up_below);
  visit("train_steps", task.train_steps);
  visit("seed", task.seed);
  visit("checkpoint_dir", task.checkpoint_dir);
  visit("checkpoint_tag", task.checkpoint_tag);
  visit("training", task.training);
  visit("trace", task.trace);
  visit("generate", task.generate);
  visit("history_path", task.history_path);
  visit("report_address", task.report_address);
}

Json ToJson(const TrialTask& task) {
  return fields::Encode(task);
}

TrialTask TrialTaskFromJson(const Json& json) {
  TrialTask task;
  fields::Decode(json, "task", task);
  return task;
}

}  // namespace dsat
