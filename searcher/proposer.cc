// A method behind a record of what has run; rewinding is replaying its calls since the last time.
#include "searcher/proposer.h"

#include "base/error.h"
#include "engine/config/validate.h"
#include "profiler/effective_key.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

constexpr TrialId kNoTrial = -1;

}  // namespace

Proposer::Proposer(const ExperimentSpec& spec, const SearchSpace& space, int64_t num_params)
    : spec_(&spec),
      space_(space),
      num_params_(num_params),
      method_(FindMethod(spec.method).make(space_, spec.options)),
      base_(method_->Clone()) {}

Draft Proposer::DraftSubmitted() const {
  return MakeDraft({});
}

Draft Proposer::MakeDraft(const Assignment& assignment) const {
  const int64_t world_size = spec_->slots_per_trial;
  Draft draft{.assignment = assignment,
              .ds_config = engine::ConfigForTrial(spec_->ds_config, assignment, world_size),
              .key = {},
              .refused = {}};
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

std::optional<Draft> Proposer::Next(const Misfit& misfit) {
  DSAT_CHECK(!drafted_tag_, "the previous draft has not been started");
  if (in_vain_) return std::nullopt;
  const size_t num_calls = calls_.size();
  const int64_t num_proposals = num_proposals_;
  // Asks that give no trial are not in any log, so that they must not have happened.
  const auto undo = [&] {
    if (calls_.size() != num_calls) RewindTo(num_calls);
    num_proposals_ = num_proposals;
  };
  try {
    std::optional<Draft> draft = Seek(misfit);
    if (draft) return draft;
  } catch (const Error&) {
    undo();
    throw;
  }
  undo();
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
    for (const auto& [key, tag] : pending.waiting)
      records_.at(key).waiting.push_back(tag);
    for (const auto& [key, told] : pending.told)
      records_[key].finished = told;
    draft->refused = std::move(pending.refused);
    drafted_tag_ = proposal->tag;
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
                                                  .profile = std::nullopt});
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
  if (PolicyOf(spec_->options).repeat_equal) draft.key += fmt::format("#{}", num_proposals_);
  const auto found = records_.find(draft.key);
  const auto refused = pending.told.find(draft.key);
  if (refused != pending.told.end()) {
    TellMethod(proposal.tag, refused->second);
  } else if (found == records_.end()) {
    const std::string reason = misfit(draft);
    if (reason.empty()) return draft;
    pending.told[draft.key] = Refuse(proposal, reason);
    pending.refused.push_back({proposal.assignment, reason});
  } else if (found->second.finished) {
    TellMethod(proposal.tag, found->second.finished);
  } else {
    pending.waiting.emplace_back(draft.key, proposal.tag);
  }
  return std::nullopt;
}

void Proposer::Start(const Draft& draft, TrialId id) {
  Record& record = records_[draft.key];
  if (drafted_tag_) record.waiting.push_back(*drafted_tag_);
  drafted_tag_.reset();
  key_of_[id] = draft.key;
  in_vain_ = false;
}

void Proposer::End(const Trial& finished) {
  Record& record = records_.at(key_of_.at(finished.id));
  record.finished = std::make_shared<const Trial>(finished);
  for (const int64_t tag : std::exchange(record.waiting, {}))
    TellMethod(tag, record.finished);
  in_vain_ = false;
}

std::optional<Proposal> Proposer::AskMethod() {
  std::optional<Proposal> proposal = method_->Ask();
  if (!proposal) return std::nullopt;
  calls_.push_back({});
  ++num_proposals_;
  return proposal;
}

void Proposer::TellMethod(int64_t tag, std::shared_ptr<const Trial> finished) {
  method_->Tell(tag, *finished);
  calls_.push_back({.tag = tag, .told = std::move(finished)});
}

// Replays each call once in all, however often it is called: the base keeps what it has replayed.
void Proposer::RewindTo(size_t num_calls) {
  calls_.resize(num_calls);
  for (const Call& call : std::exchange(calls_, {})) {
    if (call.told) {
      base_->Tell(call.tag, *call.told);
    } else {
      base_->Ask();
    }
  }
  method_ = base_->Clone();
}

}  // namespace dsat
