// A method behind a record of what has run; rewinding is replaying its calls.
#include "searcher/proposer.h"

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "profiler/effective_key.h"

namespace dsat {
namespace {

constexpr TrialId kNoTrial = -1;

}  // namespace

Proposer::Proposer(const ExperimentSpec& spec, const SearchSpace& space, int64_t num_params)
    : spec_(&spec), space_(space), num_params_(num_params) {
  RewindTo(0);
}

Draft Proposer::DraftSubmitted() const {
  return MakeDraft({});
}

Draft Proposer::MakeDraft(const Assignment& assignment) const {
  const int64_t world_size = spec_->slots_per_trial;
  Draft draft{.assignment = assignment,
              .ds_config = engine::ConfigForTrial(spec_->ds_config, assignment, world_size),
              .key = {}};
  engine::ValidateDsConfig(draft.ds_config, "the trial's ds_config", world_size);
  draft.key = EffectiveKey(draft.ds_config, world_size, num_params_);
  return draft;
}

const Proposer::Resolved& Proposer::Resolve(const Assignment& assignment) {
  const auto [entry, added] = resolved_.try_emplace(assignment);
  if (!added) return entry->second;
  try {
    entry->second.draft = MakeDraft(assignment);
  } catch (const Error& error) {
    entry->second.refusal = error.what();
  }
  return entry->second;
}

std::optional<Draft> Proposer::Next() {
  DSAT_CHECK(!drafted_tag_, "the previous draft has not been started");
  const size_t num_calls = calls_.size();
  Waiting waiting;
  for (int i = 0; i < kMaxAnsweredInARow; ++i) {
    const std::optional<Proposal> proposal = AskMethod();
    if (!proposal) break;
    std::optional<Draft> draft = Consider(*proposal, waiting);
    if (!draft) continue;
    for (const auto& [key, tag] : waiting)
      records_.at(key).waiting.push_back(tag);
    drafted_tag_ = proposal->tag;
    return draft;
  }
  // Asks that give no trial are not in any log, so that they must not have happened.
  if (calls_.size() != num_calls) RewindTo(num_calls);
  return std::nullopt;
}

std::optional<Draft> Proposer::Consider(const Proposal& proposal, Waiting& waiting) {
  const Resolved& resolved = Resolve(proposal.assignment);
  if (!resolved.draft) {
    refusal_ = resolved.refusal;
    TellMethod(proposal.tag, {.id = kNoTrial,
                              .kind = TrialKind::kSearch,
                              .assignment = proposal.assignment,
                              .ds_config = nullptr,
                              .state = TrialState::kInfeasible,
                              .reason = refusal_,
                              .points = {},
                              .profile = std::nullopt});
    return std::nullopt;
  }
  Draft draft = *resolved.draft;
  // Published behaviour: no two are equal.
  if (spec_->options.compat_determined) draft.key += fmt::format("#{}", calls_.size());
  const auto found = records_.find(draft.key);
  if (found == records_.end()) return draft;
  if (found->second.finished) {
    TellMethod(proposal.tag, *found->second.finished);
  } else {
    waiting.emplace_back(draft.key, proposal.tag);
  }
  return std::nullopt;
}

void Proposer::Start(const Draft& draft, TrialId id) {
  Record& record = records_[draft.key];
  if (drafted_tag_) record.waiting.push_back(*drafted_tag_);
  drafted_tag_.reset();
  key_of_[id] = draft.key;
}

void Proposer::End(const Trial& finished) {
  Record& record = records_.at(key_of_.at(finished.id));
  record.finished = finished;
  for (const int64_t tag : std::exchange(record.waiting, {}))
    TellMethod(tag, finished);
}

std::optional<Proposal> Proposer::AskMethod() {
  std::optional<Proposal> proposal = method_->Ask();
  if (proposal) calls_.push_back({});
  return proposal;
}

void Proposer::TellMethod(int64_t tag, const Trial& finished) {
  method_->Tell(tag, finished);
  calls_.push_back({.tag = tag, .told = finished});
}

void Proposer::RewindTo(size_t num_calls) {
  method_ = FindMethod(spec_->method).make(space_, spec_->options);
  calls_.resize(num_calls);
  for (const Call& call : calls_) {
    if (call.tag) {
      method_->Tell(*call.tag, call.told);
    } else {
      method_->Ask();
    }
  }
}

}  // namespace dsat
