// The JSON form of a trial's task.
#include "proto/trial_task.h"

#include "base/enum_names.h"
#include "base/fields.h"

namespace dsat {

static constexpr EnumNames<TrialTask::Mode, 6> NamesOf(TrialTask::Mode) {
  return {"task/mode",
          {{{TrialTask::Mode::kProfile, "profile"},
            {TrialTask::Mode::kMeasure, "measure"},
            {TrialTask::Mode::kSoak, "soak"},
            {TrialTask::Mode::kTrain, "train"},
            {TrialTask::Mode::kEvaluate, "evaluate"},
            {TrialTask::Mode::kGenerate, "generate"}}}};
}

DSAT_FIELDS(GenerateTask, prompt, max_new_tokens, temperature, top_k, num_samples)

DSAT_FIELDS(TraceTask, path, first_step, last_step)

DSAT_FIELDS(TrainingOptions, checkpoint_interval, checkpoint_seconds, keep, keep_best,
            eval_interval, eval_batches)

// The mode is a text.
static void to_json(Json& json, TrialTask::Mode mode) {
  json = ToString(mode);
}
static void from_json(const Json& json, TrialTask::Mode& mode) {
  mode = Parse<TrialTask::Mode>(json.is_string() ? json.get<std::string>() : json.dump());
}

DSAT_FIELDS(TrialTask, mode, experiment, trial, attempt, ds_config, model, data, base_dir, device,
            device_memory_bytes, host_memory_bytes, start_profile_step, end_profile_step,
            fixed_window, give_up_below, train_steps, seed, checkpoint_dir, checkpoint_tag,
            training, trace, generate, json, history_path, report_address)

Json ToJson(const TrialTask& task) {
  return fields::Encode(task);
}

TrialTask TrialTaskFromJson(const Json& json) {
  return fields::DecodeAs<TrialTask>(json, "task");
}

}  // namespace dsat
