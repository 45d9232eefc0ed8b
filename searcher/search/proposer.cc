// A method behind a record of what has run; rewinding is replaying its calls since the last time.
#include "searcher/search/proposer.h"

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/validate.h"
#include "methods/methods.h"
#include "profiler/effective_key.h"
#include "proto/micro_batch.h"
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

Proposer::Proposer(const ExperimentSpec& spec, const SearchSpace& space, int64_t num_params)
    : spec_(&spec),
      space_(WithConditions(space, spec)),
      num_params_(num_params),
      method_(FindMethod(spec.method).make(space_, spec.options)),
      base_(method_->Clone()) {}

// With another global batch than its own, the submitted configuration keeps its micro-batch size,
// or the next smaller one that divides the batch.
Draft Proposer::DraftSubmitted() const {
  const engine::BatchSizes batch =
      engine::ResolveBatchSizes(spec_->ds_config, "ds_config", spec_->slots_per_trial);
  const int64_t samples = space_.samples_per_step;
  if (samples == 0 || batch.micro_batch_size * batch.accumulation_steps == samples)
    return Complete({});
  int64_t size = std::min(batch.micro_batch_size, samples);
  while (samples % size != 0)
    --size;
  return Complete({{kMicroBatchKey, size}, {kAccumulationKey, samples / size}});
}

Draft Proposer::MakeDraft(Assignment assignment) const {
  const auto size = assignment.find(kMicroBatchKey);
  if (size != assignment.end()) {
    const int64_t legal = LegalMicroBatch(space_, size->second.get<int64_t>());
    size->second = legal;
    if (space_.samples_per_step > 0) assignment[kAccumulationKey] = space_.samples_per_step / legal;
  }
  return Complete(std::move(assignment));
}

Draft Proposer::Complete(Assignment assignment) const {
  const int64_t world_size = spec_->slots_per_trial;
  Draft draft{.assignment = std::move(assignment), .ds_config = {}, .key = {}, .refused = {}};
  draft.ds_config = engine::ConfigForTrial(spec_->ds_config, draft.assignment, world_size);
  const Json known = engine::KnownPart(draft.ds_config, spec_->search_space);
  engine::ValidateDsConfig(known, "the trial's ds_config", world_size);
  draft.key = EffectiveKey(draft.ds_config, *spec_, num_params_);
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

const Proposer::Resolved& Proposer::Resolve(const Assignment& assignment) {
  const auto [entry, added] = resolved_.try_emplace(assignment);
  if (!added) return entry->second;
  try {
    Draft draft = MakeDraft(assignment);
    entry->second.refusal = BrokenCondition(draft.ds_config);
    if (entry->second.refusal.empty()) entry->second.draft = std::move(draft);
  } catch (const Error& error) {
    entry->second.refusal = error.what();
  }
  return entry->second;
}

std::optional<Draft> Proposer::Next(const Misfit& misfit) {
  DSAT_CHECK(!drafted_, "the previous draft was neither started nor discarded");
  if (in_vain_) return std::nullopt;
  const size_t num_calls = calls_.size();
  const int64_t num_proposals = num_proposals_;
  // Asks that give no trial are not in any log, so that they must not have happened.
  try {
    std::optional<Draft> draft = Seek(misfit);
    if (draft) {
      drafted_->num_calls = num_calls;
      drafted_->num_proposals = num_proposals;
      return draft;
    }
  } catch (const Error&) {
    RewindTo(num_calls, num_proposals);
    throw;
  }
  RewindTo(num_calls, num_proposals);
  in_vain_ = true;
  return std::nullopt;
}

std::optional<Draft> Proposer::Seek(const Misfit& misfit) {
  Pending pending;
  for (int i = 0; i < kMaxAnsweredInARow; ++i) {
    const std::optional<Proposal> proposal = AskMethod();
    if (!proposal) break;
    std::optional<Draft> draft = Consider(*proposal, misfit, pending);
    if (!draft) continue;
    draft->refused = pending.refused;
    drafted_ = Drafted{.tag = proposal->tag, .pending = std::move(pending)};
    return draft;
  }
  return std::nullopt;
}

// Tells that the proposal is infeasible; gives the trial that it is told of.
std::shared_ptr<const Trial> Proposer::Refuse(const Proposal& proposal, const std::string& reason) {
  refusal_ = reason;
  auto told = std::make_shared<const Trial>(Trial{.id = kNoTrial,
                                                  .kind = TrialKind::kSearch,
                                                  .assignment = proposal.assignment,
                                                  .ds_config = nullptr,
                                                  .state = TrialState::kInfeasible,
                                                  .reason = reason,
                                                  .points = {},
                                                  .profile = std::nullopt,
                                                  .confirms = std::nullopt});
  TellMethod(proposal.tag, told);
  return told;
}

std::optional<Draft> Proposer::Consider(const Proposal& proposal, const Misfit& misfit,
                                        Pending& pending) {
  const Resolved& resolved = Resolve(proposal.assignment);
  if (!resolved.draft) {
    Refuse(proposal, resolved.refusal);
    return std::nullopt;
  }
  Draft draft = *resolved.draft;
  // In the published method, no two proposals are equal.
  if (proposal.repeat || PolicyOf(spec_->options).repeat_equal)
    draft.key += fmt::format("#{}", num_proposals_);
  draft.give_up_below = proposal.give_up_below;
  const auto found = records_.find(draft.key);
  const auto refused = pending.told.find(draft.key);
  if (refused != pending.told.end()) {
    TellMethod(proposal.tag, refused->second);
  } else if (found == records_.end()) {
    const std::string reason = misfit(draft);
    if (reason.empty()) return draft;
    pending.told[draft.key] = Refuse(proposal, reason);
    pending.refused.push_back({draft.assignment, reason});
  } else if (found->second.finished) {
    TellMethod(proposal.tag, found->second.finished);
  } else {
    pending.waiting.emplace_back(draft.key, proposal.tag);
  }
  return std::nullopt;
}

void Proposer::Discard() {
  if (!drafted_) return;
  RewindTo(drafted_->num_calls, drafted_->num_proposals);
  drafted_.reset();
}

void Proposer::Start(const Draft& draft, TrialId id) {
  Record& record = records_[draft.key];
  if (drafted_) {
    for (const auto& [key, tag] : drafted_->pending.waiting)
      records_.at(key).waiting.push_back(tag);
    for (const auto& [key, told] : drafted_->pending.told)
      records_[key].finished = told;
    record.waiting.push_back(drafted_->tag);
    tag_of_[id] = drafted_->tag;
  }
  drafted_.reset();
  key_of_[id] = draft.key;
  in_vain_ = false;
}

void Proposer::End(const Trial& finished) {
  const auto told = std::make_shared<const Trial>(finished);
  Record& record = records_.at(key_of_.at(finished.id));
  record.finished = told;
  for (const int64_t tag : std::exchange(record.waiting, {}))
    TellMethod(tag, told);
  for (size_t i = 1; i < finished.points.size(); ++i) {
    const Draft draft = DraftAt(finished, finished.points[i].point);
    Trial other = finished;
    other.points = {finished.points[i]};
    other.ds_config = draft.ds_config;
    Record& at_point = records_[draft.key];
    if (!at_point.finished && at_point.waiting.empty())
      at_point.finished = std::make_shared<const Trial>(std::move(other));
  }
  in_vain_ = false;
  if (!tag_of_.contains(finished.id)) Observe(finished);
}

void Proposer::Observe(const Trial& finished) {
  method_->Observe(finished);
  calls_.push_back(
      {.kind = Call::Kind::kObserve, .trial = std::make_shared<const Trial>(finished)});
  in_vain_ = false;
}

std::optional<Point> Proposer::NextPoint(const Trial& running) {
  const auto tag = tag_of_.find(running.id);
  if (tag == tag_of_.end()) return std::nullopt;
  calls_.push_back({.kind = Call::Kind::kNextPoint,
                    .tag = tag->second,
                    .trial = std::make_shared<const Trial>(running)});
  return method_->NextPoint(tag->second, running);
}

Draft Proposer::DraftAt(const Trial& trial, const Point& point) const {
  Draft draft{.assignment = trial.assignment,
              .ds_config = ConfigAt(trial, point, spec_->slots_per_trial),
              .key = {},
              .refused = {}};
  draft.key = EffectiveKey(draft.ds_config, *spec_, num_params_);
  return draft;
}

std::optional<TrialId> Proposer::TrialOf(int64_t tag) const {
  const auto found = answer_to_.find(tag);
  return found == answer_to_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Proposal> Proposer::AskMethod() {
  std::optional<Proposal> proposal = method_->Ask();
  if (!proposal) return std::nullopt;
  calls_.push_back({});
  ++num_proposals_;
  return proposal;
}

void Proposer::TellMethod(int64_t tag, const std::shared_ptr<const Trial>& finished) {
  method_->Tell(tag, *finished);
  calls_.push_back({.kind = Call::Kind::kTell, .tag = tag, .trial = finished});
  if (finished->id != kNoTrial) answer_to_[tag] = finished->id;
}

// Replays each call once in all, however often it is called: the base keeps what it has replayed.
void Proposer::RewindTo(size_t num_calls, int64_t num_proposals) {
  num_proposals_ = num_proposals;
  if (calls_.size() == num_calls) return;
  calls_.resize(num_calls);
  for (const Call& call : std::exchange(calls_, {})) {
    switch (call.kind) {
      case Call::Kind::kAsk:
        base_->Ask();
        break;
      case Call::Kind::kTell:
        base_->Tell(call.tag, *call.trial);
        break;
      case Call::Kind::kObserve:
        base_->Observe(*call.trial);
        break;
      case Call::Kind::kNextPoint:
        base_->NextPoint(call.tag, *call.trial);
        break;
    }
  }
  method_ = base_->Clone();
}

}  // namespace dsat
