// Turns the proposals of a method into trials, so that no two trials run equal configurations.
//
// A proposal whose effective configuration has run already gets the result of that trial. A
// proposal whose effective configuration is running waits for its result. A proposal that breaks a
// rule of ds_config or a condition of the experiment (ExperimentSpec::where), or that is predicted
// not to fit, is infeasible without a trial. Every other proposal becomes a trial. With --compat
// determined equal configurations run again, and so does a proposal that asks to be repeated. A
// micro-batch size that the space does not allow is rounded down (proto/micro_batch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "methods/method.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The configuration that an assignment runs.
struct Draft {
  Assignment assignment;
  Json ds_config;   // Resolved.
  std::string key;  // Its effective configuration.
};

// The resolved config of a trial of `world_size` ranks at a point.
Json ConfigAt(const Trial& trial, const Point& point, int64_t world_size);

// A proposal of a method, by the log.
struct Recorded {
  std::optional<Assignment> assignment;  // nullopt: nothing.
  bool is_started = false;               // A trial was started for it.
};

class Proposer {
 public:
  // After so many consecutive proposals that needed no trial, the method is asked only for a few
  // each time that a trial ends: there is hardly anything new.
  static constexpr int kMaxAnsweredInARow = 200, kMaxAnsweredAfterEnd = 8;

  // `space` and `num_params` come from the profile.
  Proposer(ExperimentSpec spec, const SearchSpace& space, int64_t num_params);

  // The spec whose ds_config the method starts from.
  const ExperimentSpec& spec() const { return spec_; }
  // The space that the method chooses from, with the experiment's conditions.
  const SearchSpace& space() const { return space_; }

  // The submitted configuration as it stands. Throws kInvalidArgument if it breaks a rule.
  Draft DraftSubmitted() const;
  // The draft that an assignment runs: micro-batch sizes that are not allowed are rounded down, and
  // the accumulation follows a fixed batch. Throws kInvalidArgument if it breaks a rule of
  // ds_config, which a config of a trial that `has_started` is known not to do.
  Draft MakeDraft(Assignment assignment, bool has_started = false) const;
  // The config of a started trial at another point, and the key of that config.
  Draft DraftAt(const Trial& trial, const Point& point) const;

  // Asks the method for a proposal, unless one waits. Returns whether one waits now: then it is
  // answered or started next. `recorded` is what it proposes in a replay, else nullptr.
  bool Propose(const Recorded* recorded);
  // The trial that the waiting proposal asks for; its ds_config is null if it breaks a rule.
  Trial Proposed() const;
  // Returns why a draft cannot run, or "" if it may.
  using Misfit = std::function<std::string(const Draft& draft)>;
  // The answer to the waiting proposal if it needs no trial; nullopt if it needs one, and if none
  // waits. `misfit` is called for a configuration that is neither refused nor equal to another one.
  std::optional<Answered> AnswerTo(const Misfit& misfit) const;
  // Gives the waiting proposal this answer. Returns false, and does nothing, if another proposal
  // waits or it cannot have this answer.
  bool Answer(const Answered& answer);

  // The trial runs from now on: that of the waiting proposal if its kind is kSearch.
  void Start(const Trial& trial);
  // Tells the method the result of a started trial, for its proposal and those that wait for it. A
  // trial that the method did not propose is shown to it. Points beyond the first one count as
  // configurations that have run.
  void End(const Trial& finished);
  // Shows the method a trial that was not started here: a profiling or confirm trial.
  void Observe(const Trial& finished);

  // A point of a started trial was measured. Returns the one that the method wants to be measured
  // next in its process; nullopt if the trial `has_ended` since, in a replay.
  std::optional<Point> Measured(const Trial& running, bool has_ended);

  // The method, for its conclusions; its proposals are made and answered here.
  const Method& method() const { return *method_; }
  // The trial that answered the proposal with this tag; nullopt if none did.
  std::optional<TrialId> TrialOf(int64_t tag) const;

  // Why the latest proposal that was infeasible without a trial was refused; "" if there is none.
  const std::string& refusal() const { return refusal_; }
  // How many configurations were refused by a prediction.
  int64_t num_misfits() const { return num_misfits_; }

 private:
  // The results of one effective configuration.
  struct Record {
    std::optional<TrialId> trial;       // nullopt if it was refused.
    std::optional<Trial> finished;      // nullopt while it runs; infeasible if it was refused.
    std::vector<int64_t> waiting = {};  // Tags of the proposals to tell.
  };
  // An assignment resolved, or why it cannot be.
  struct Resolved {
    std::optional<Draft> draft;
    std::string refusal;
  };

  // `assignment` resolved, as MakeDraft; and checked, unless a trial of it `has_started`.
  Draft Complete(Assignment assignment, bool has_started = false) const;
  std::string BrokenCondition(const Json& ds_config) const;
  Resolved Resolve(const Assignment& assignment, bool has_started) const;
  void TellMethod(int64_t tag, const Trial& finished);
  void AllowMore();

  ExperimentSpec spec_;
  SearchSpace space_;
  int64_t num_params_;
  std::unique_ptr<Method> method_;
  std::optional<Proposal> waiting_;
  // The configuration of waiting_, in all_resolved_. Its key is unique if it runs whatever has run.
  const Resolved* resolved_ = nullptr;
  std::string key_;
  int64_t num_proposals_ = 0;  // The method has made so many.
  int num_answered_in_a_row_ = 0;
  std::map<std::string, Record> records_;  // By key.
  std::map<TrialId, std::string> key_of_;  // The key of each started trial.
  std::map<TrialId, int64_t> tag_of_;      // The tag of each trial that the method has proposed.
  std::map<int64_t, TrialId> answer_to_;   // By tag: the trial that the method was told.
  std::map<Assignment, Resolved> all_resolved_;  // Late in a search most proposals are old.
  std::string refusal_;
  int64_t num_misfits_ = 0;
};

}  // namespace dsat
