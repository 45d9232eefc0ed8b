// A method behind a record of what has run.
#include "searcher/search/proposer.h"

#include <algorithm>

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/validate.h"
#include "methods/methods.h"
#include "profiler/effective_key.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

constexpr TrialId kNoTrial = -1;

static_assert(kLargestMicroBatch <= engine::kMostMicroBatch, "methods propose what is refused");

// The space with the experiment's conditions, and with the submitted values of all keys in them.
SearchSpace WithConditions(SearchSpace space, const ExperimentSpec& spec) {
  if (spec.where.empty()) return space;
  const engine::Settings settings(spec.ds_config, "ds_config");
  for (const std::string& text : spec.where) {
    const Comparison& condition = space.where.emplace_back(ParseComparison(text));
    for (const std::string& pointer : {condition.left, condition.right}) {
      for (StageSpace& stage : space.stages) {
        const engine::Settings here = settings.AtStage(stage.stage);
        if (here.keys().Find(pointer) != nullptr)
          stage.submitted.try_emplace(pointer, here.Get(pointer));
      }
    }
  }
  return space;
}

}  // namespace

Json ConfigAt(const Trial& trial, const Point& point, int64_t world_size) {
  return engine::ConfigForTrial(
      trial.ds_config,
      {{kMicroBatchKey, point.micro_batch_size}, {kAccumulationKey, point.accumulation_steps}},
      world_size);
}

Proposer::Proposer(ExperimentSpec spec, const SearchSpace& space, int64_t num_params)
    : spec_(std::move(spec)),
      space_(WithConditions(space, spec_)),
      num_params_(num_params),
      method_(FindMethod(spec_.method).make(space_, spec_.options)) {}

// With another global batch than its own, the submitted configuration keeps its micro-batch size,
// or the next smaller one that divides the batch.
Draft Proposer::DraftSubmitted() const {
  const engine::BatchSizes batch =
      engine::ResolveBatchSizes(spec_.ds_config, "ds_config", spec_.slots_per_trial);
  const int64_t samples = space_.samples_per_step;
  if (samples == 0 || batch.micro_batch_size * batch.accumulation_steps == samples)
    return Complete({});
  const int64_t size = LargestDivisor(samples, batch.micro_batch_size);
  return Complete({{kMicroBatchKey, size}, {kAccumulationKey, samples / size}});
}

Draft Proposer::MakeDraft(Assignment assignment, bool has_started) const {
  const auto size = assignment.find(kMicroBatchKey);
  if (size != assignment.end()) {
    const int64_t legal = LegalMicroBatch(space_, size->second.get<int64_t>());
    size->second = legal;
    if (space_.samples_per_step > 0) assignment[kAccumulationKey] = space_.samples_per_step / legal;
  }
  return Complete(std::move(assignment), has_started);
}

Draft Proposer::Complete(Assignment assignment, bool has_started) const {
  const int64_t world_size = spec_.slots_per_trial;
  Draft draft{.assignment = std::move(assignment), .ds_config = {}, .key = {}};
  draft.ds_config = engine::ConfigForTrial(spec_.ds_config, draft.assignment, world_size);
  if (!has_started) {
    const Json known = engine::KnownPart(draft.ds_config, spec_.search_space);
    engine::ValidateDsConfig(known, "the trial's ds_config", world_size);
  }
  draft.key = EffectiveKey(draft.ds_config, spec_, num_params_);
  return draft;
}

// The condition that a config breaks, with its values; "" if there is none. Methods do not propose
// such a config where they can help it.
std::string Proposer::BrokenCondition(const Json& ds_config) const {
  if (space_.where.empty()) return "";
  const engine::Settings settings(ds_config, "the trial's ds_config");
  const PointerValue value_of = [&](const std::string& pointer) {
    return settings.ValueOrNull(pointer);
  };
  for (const Comparison& condition : space_.where) {
    if (Holds(condition, value_of)) continue;
    return fmt::format("it breaks the condition \"{}\" of where: {} is {}{}", condition.text,
                       condition.left, value_of(condition.left).dump(),
                       condition.right.empty() ? ""
                                               : fmt::format(", {} is {}", condition.right,
                                                             value_of(condition.right).dump()));
  }
  return "";
}

Proposer::Resolved Proposer::Resolve(const Assignment& assignment, bool has_started) const {
  try {
    Draft draft = MakeDraft(assignment, has_started);
    std::string refusal = BrokenCondition(draft.ds_config);
    if (!refusal.empty()) return {std::nullopt, std::move(refusal)};
    return {std::move(draft), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

bool Proposer::Propose(const Recorded* recorded) {
  if (waiting_) return true;
  // An older log may have more of them.
  const bool was_asked = recorded != nullptr && recorded->assignment;
  if (num_answered_in_a_row_ >= kMaxAnsweredInARow && !was_asked) return false;
  waiting_ = recorded == nullptr ? method_->Ask() : method_->Replay(recorded->assignment);
  if (!waiting_) return false;
  ++num_proposals_;
  const auto [entry, is_new] = all_resolved_.try_emplace(waiting_->assignment);
  if (is_new) entry->second = Resolve(waiting_->assignment, was_asked && recorded->is_started);
  resolved_ = &entry->second;
  key_ = resolved_->draft ? resolved_->draft->key : "";
  if (was_asked && recorded->is_started && records_.contains(key_)) waiting_->repeat = true;
  // In the published method, no two proposals are equal.
  if (waiting_->repeat || PolicyOf(spec_.options).repeat_equal)
    key_ += fmt::format("#{}", num_proposals_);
  return true;
}

Trial Proposer::Proposed() const {
  Trial trial;
  trial.kind = TrialKind::kSearch;
  trial.assignment = resolved_->draft ? resolved_->draft->assignment : waiting_->assignment;
  if (resolved_->draft) trial.ds_config = resolved_->draft->ds_config;
  trial.give_up_below = waiting_->give_up_below;
  return trial;
}

std::optional<Answered> Proposer::AnswerTo(const Misfit& misfit) const {
  if (!waiting_) return std::nullopt;
  Answered answer{.assignment = waiting_->assignment, .reason = resolved_->refusal, .trial = {}};
  if (!resolved_->draft) return answer;
  const auto found = records_.find(key_);
  if (found != records_.end()) {
    answer.trial = found->second.trial;
    if (!answer.trial) answer.reason = found->second.finished->reason;
    return answer;
  }
  Draft draft = *resolved_->draft;
  draft.key = key_;
  answer.reason = misfit(draft);
  return answer.reason.empty() ? std::nullopt : std::optional(std::move(answer));
}

bool Proposer::Answer(const Answered& answer) {
  if (!waiting_ || waiting_->assignment != answer.assignment) return false;
  const auto record = records_.find(key_);
  const std::optional<TrialId> equal =
      record == records_.end() ? std::nullopt : record->second.trial;
  if (equal != answer.trial || answer.reason.empty() != equal.has_value()) return false;
  const int64_t tag = std::exchange(waiting_, std::nullopt)->tag;
  ++num_answered_in_a_row_;
  if (equal && !record->second.finished) {
    record->second.waiting.push_back(tag);
  } else if (record != records_.end()) {
    TellMethod(tag, *record->second.finished);
  } else {
    Trial refused;
    refused.id = kNoTrial;
    refused.assignment = answer.assignment;
    refused.state = TrialState::kInfeasible;
    refused.reason = refusal_ = answer.reason;
    if (resolved_->draft) {
      records_[key_] = {.trial = std::nullopt, .finished = refused};
      ++num_misfits_;
    }
    TellMethod(tag, refused);
  }
  return true;
}

void Proposer::Start(const Trial& trial) {
  std::string key = key_;
  Record record{.trial = trial.id, .finished = std::nullopt};
  if (trial.kind == TrialKind::kSearch) {
    record.waiting.push_back(waiting_->tag);
    tag_of_[trial.id] = waiting_->tag;
    waiting_.reset();
  } else {
    key = EffectiveKey(trial.ds_config, spec_, num_params_);
  }
  key_of_[trial.id] = key;
  records_[key] = std::move(record);
  num_answered_in_a_row_ = 0;
}

void Proposer::End(const Trial& finished) {
  Record& record = records_.at(key_of_.at(finished.id));
  record.finished = finished;
  for (const int64_t tag : std::exchange(record.waiting, {}))
    TellMethod(tag, finished);
  for (size_t i = 1; i < finished.points.size(); ++i) {
    const Draft draft = DraftAt(finished, finished.points[i].point);
    Trial other = finished;
    other.points = {finished.points[i]};
    other.ds_config = draft.ds_config;
    records_.try_emplace(draft.key, Record{.trial = finished.id, .finished = std::move(other)});
  }
  AllowMore();
  if (!tag_of_.contains(finished.id)) Observe(finished);
}

void Proposer::Observe(const Trial& finished) {
  method_->Observe(finished);
  AllowMore();
}

void Proposer::AllowMore() {
  num_answered_in_a_row_ =
      std::min(num_answered_in_a_row_, kMaxAnsweredInARow - kMaxAnsweredAfterEnd);
}

std::optional<Point> Proposer::Measured(const Trial& running, bool has_ended) {
  const auto tag = tag_of_.find(running.id);
  if (tag == tag_of_.end()) return std::nullopt;
  method_->Measured(tag->second, running);
  return has_ended ? std::nullopt : method_->NextPoint(tag->second, running);
}

Draft Proposer::DraftAt(const Trial& trial, const Point& point) const {
  Draft draft{.assignment = trial.assignment,
              .ds_config = ConfigAt(trial, point, spec_.slots_per_trial),
              .key = {}};
  draft.key = EffectiveKey(draft.ds_config, spec_, num_params_);
  return draft;
}

std::optional<TrialId> Proposer::TrialOf(int64_t tag) const {
  const auto found = answer_to_.find(tag);
  return found == answer_to_.end() ? std::nullopt : std::optional(found->second);
}

void Proposer::TellMethod(int64_t tag, const Trial& finished) {
  method_->Tell(tag, finished);
  if (finished.id != kNoTrial) answer_to_[tag] = finished.id;
}

}  // namespace dsat
