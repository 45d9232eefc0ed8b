// The phases of a search, each of which decides what it runs next by what it was told.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/json.h"
#include "proto/trial.h"
#include "searcher/search/search_state.h"

namespace dsat {

// All phases of a search hear of all of its trials.
class Phase {
 public:
  // `state` must outlive the phase.
  explicit Phase(SearchState& state) : state_(state) {}
  virtual ~Phase() = default;

  // The next trial to start, without its number; nullopt if there is none now. The same call gives
  // the same trial until something has happened.
  virtual std::optional<Trial> Next() = 0;
  // A trial of any phase has started, which is not in state_.trials yet.
  virtual void Start(const Trial& /*started*/) {}
  // A trial of any phase has ended.
  virtual void Tell(const Trial& /*finished*/) {}
  // The limits of the search were raised.
  virtual void Reopen() {}
  // Whether the next phase may begin, now that Next has given no trial.
  virtual bool IsOver() const { return state_.running.empty(); }
  // Whether the phase may still run trials that it would not run if the search ended now
  // (Search::EndSearch).
  virtual bool MayGoOn() const { return false; }

 protected:
  SearchState& state_;
};

// The phases of a search in their order.
std::vector<std::unique_ptr<Phase>> PhasesOf(SearchState& state);

// Measures the model: with the submitted configuration or, if that does not fit, with ones that
// need less and less memory. Without a profile nothing else runs.
class ProfilePhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
  bool IsOver() const override { return state_.profile.has_value(); }
  bool MayGoOn() const override { return !state_.profile; }
};

// Measures the submitted configuration, also where a limit has ended the search before, so that
// there is an answer. The next phase need not wait for the result.
class SubmittedPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
  bool IsOver() const override { return Phase::IsOver() || !IsDue(); }

 private:
  bool IsDue() const;
};

// Tries what the method proposes until it proposes nothing more or a limit is reached.
class MethodPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
  void Start(const Trial& started) override;
  void Tell(const Trial& finished) override;
  void Reopen() override { is_exhausted_ = false; }
  bool MayGoOn() const override { return !is_exhausted_; }

 private:
  bool is_exhausted_ = false;  // Nothing was proposed while no trial ran.
};

// Measures the two configurations of `dsat check`, which searches nothing.
class CheckPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
};

// Measures the best configurations and the submitted one again, in rounds
// (searcher/search/confirm.h), as far as the time allows. The last launch of the best one is the
// soak (ProofOf). If all of the best drop out, others take their places in another confirmation.
class ConfirmPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
  void Start(const Trial& started) override;
  void Tell(const Trial& finished) override;

 private:
  bool HasLostFinalists() const;
  std::vector<TrialId> Arms() const;
  Confirmation Plan() const;
  void AddBeliefs(Confirmation& confirmation) const;
  std::optional<Trial> ProofIn(const Confirmation& confirmation, TrialId arm) const;
  void LeaveOutWhatTrainsOtherwise();

  std::optional<Confirmation> planned_;  // It becomes that of state_ when its first trial starts.
};

// Measures the pick with a larger global batch than the one that is kept, if the method expects
// much of it, so that the user can decide by a figure. It changes no pick.
class LargerBatchPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
};

// Runs what proves the pick (ProofOf) and is still missing.
class ProofPhase : public Phase {
 public:
  using Phase::Phase;
  std::optional<Trial> Next() override;
};

// The proof of the answer is a longer run of the pick (the soak) and, where the pick changes the
// global batch, runs of the submitted configuration with that batch (the references). The soak
// shows whether the configuration keeps fitting, and its losses are compared with those of the
// submitted configuration (searcher/search/loss_check.h). It is the last launch of the pick in the
// confirmation, or comes after it. A pick that fails drops out, and the next one is soaked.

// The next run for the proof of a pick, or of what becomes the pick if the next launch confirms it,
// without its number: a reference or a soak; nullopt if none is left, or no time for it. REQUIRES:
// no trial is running.
std::optional<Trial> ProofOf(const SearchState& search, TrialId pick);

// The submitted configuration with a global batch of `train_batch_size`: the largest micro-batch
// that divides it and is not larger than the submitted one. nullopt if there is none.
std::optional<Json> WithGlobalBatch(const Json& submitted, int64_t train_batch_size);

}  // namespace dsat
