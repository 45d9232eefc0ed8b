// Turns the proposals of a method into trials, so that no two trials run equal configurations.
//
// A proposal whose effective configuration has run already gets the result of that trial. A
// proposal whose effective configuration is running waits for its result. A proposal that breaks a
// rule of ds_config or a condition of the experiment (ExperimentSpec::where), or that the caller
// refuses, is infeasible without a trial. Every other proposal becomes a trial. With --compat
// determined equal configurations run again, and so does a proposal that asks to be repeated. A
// micro-batch size that the space does not allow is rounded down (proto/micro_batch.h).
#ifndef DSAT_SEARCHER_SEARCH_PROPOSER_H_
#define DSAT_SEARCHER_SEARCH_PROPOSER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "methods/method.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// A trial that has not started yet.
struct Draft {
  Assignment assignment;
  Json ds_config;   // Resolved.
  std::string key;  // Its effective configuration.
  // The proposals before it that the caller refused.
  std::vector<Refusal> refused;
  double give_up_below = 0;  // As Trial's.
};

// The resolved config of a trial of `world_size` ranks at a point.
Json ConfigAt(const Trial& trial, const Point& point, int64_t world_size);

class Proposer {
 public:
  // After this many consecutive proposals that need no trial, Next returns nullopt.
  static constexpr int kMaxAnsweredInARow = 200;

  // `spec` must outlive the proposer. `space` and `num_params` come from the profile.
  Proposer(const ExperimentSpec& spec, const SearchSpace& space, int64_t num_params);

  // The submitted configuration as it stands. Throws kInvalidArgument if it breaks a rule.
  Draft DraftSubmitted() const;

  // What an assignment runs: micro-batch sizes that are not allowed are rounded down, and the
  // accumulation follows a fixed batch. Throws kInvalidArgument if it breaks a rule of ds_config.
  Draft MakeDraft(Assignment assignment) const;
  // The space that the method chooses from, with the experiment's conditions.
  const SearchSpace& space() const { return space_; }

  // Returns why a draft cannot run, or "" if it may.
  using Misfit = std::function<std::string(const Draft& draft)>;

  // The next proposal of the method that needs a trial; nullopt if there is none now. In that case,
  // and if `misfit` throws, the call has no effect. `misfit` is called once for every configuration
  // that neither runs nor has run. A draft that was returned must be started or discarded before
  // the next call.
  std::optional<Draft> Next(const Misfit& misfit);
  // Drops the draft of the last call of Next, if it was not started. That call has had no effect.
  void Discard();

  // The draft runs as this trial from now on.
  void Start(const Draft& draft, TrialId id);
  // Tells the method the result of a started trial, for its proposal and those that wait for it. A
  // trial that the method did not propose is shown to it. Points beyond the first one count as
  // configurations that have run.
  void End(const Trial& finished);
  // Shows the method a trial that was not started here: a profiling or confirm trial.
  void Observe(const Trial& finished);

  // What the method wants to be measured after the last point of a started trial in its process.
  // Called once for every measured point.
  std::optional<Point> NextPoint(const Trial& running);
  // The config of a started trial at another point, and the key of that config.
  Draft DraftAt(const Trial& trial, const Point& point) const;

  Conclusion Conclude() const { return method_->Conclude(); }
  std::optional<double> ProbabilityNearBest(const Trial& pick) const {
    return method_->ProbabilityNearBest(pick);
  }
  std::string BoundOf(const Trial& pick) const { return method_->BoundOf(pick); }
  // The trial that answered the proposal with this tag; nullopt if none did.
  std::optional<TrialId> TrialOf(int64_t tag) const;

  // Why the latest proposal that was infeasible without a trial was refused; "" if there is none.
  const std::string& refusal() const { return refusal_; }

 private:
  // `assignment` resolved and checked, as MakeDraft.
  Draft Complete(Assignment assignment) const;

  // One call of the method.
  struct Call {
    enum class Kind { kAsk, kTell, kObserve, kNextPoint } kind = Kind::kAsk;
    int64_t tag = 0;
    std::shared_ptr<const Trial> trial = nullptr;
  };
  // What is known of one effective configuration.
  struct Record {
    std::shared_ptr<const Trial> finished;  // Null while it runs; infeasible if it was refused.
    std::vector<int64_t> waiting;           // Tags of the proposals to tell.
  };

  // An assignment resolved, or why it cannot be.
  struct Resolved {
    std::optional<Draft> draft;
    std::string refusal;
  };

  std::string BrokenCondition(const Json& ds_config) const;
  const Resolved& Resolve(const Assignment& assignment);
  // The changes that one call of Next makes besides calls of the method. They take effect when its
  // draft starts.
  struct Pending {
    std::vector<std::pair<std::string, int64_t>> waiting;      // Key, tag.
    std::map<std::string, std::shared_ptr<const Trial>> told;  // By key.
    std::vector<Refusal> refused;
  };
  // A draft of the method that is not started yet, and where the method was before it.
  struct Drafted {
    int64_t tag = 0;
    Pending pending;
    size_t num_calls = 0;
    int64_t num_proposals = 0;
  };

  std::optional<Draft> Seek(const Misfit& misfit);
  std::optional<Draft> Consider(const Proposal& proposal, const Misfit& misfit, Pending& pending);
  std::shared_ptr<const Trial> Refuse(const Proposal& proposal, const std::string& reason);
  std::optional<Proposal> AskMethod();
  void TellMethod(int64_t tag, const std::shared_ptr<const Trial>& finished);
  void RewindTo(size_t num_calls, int64_t num_proposals);

  const ExperimentSpec* spec_;
  SearchSpace space_;
  int64_t num_params_;
  std::unique_ptr<Method> method_;
  // The method as it was before calls_, from which it is rewound.
  std::unique_ptr<Method> base_;
  std::vector<Call> calls_;
  int64_t num_proposals_ = 0;                // That the method has made.
  bool in_vain_ = false;                     // Nothing has changed since Next returned nullopt.
  std::map<std::string, Record> records_;    // By key.
  std::map<TrialId, std::string> key_of_;    // Of started trials.
  std::map<TrialId, int64_t> tag_of_;        // Of those that the method has proposed.
  std::map<int64_t, TrialId> answer_to_;     // By tag: the trial that the method was told.
  std::optional<Drafted> drafted_;           // By the last call of Next, until it starts.
  std::map<Assignment, Resolved> resolved_;  // A cache: late in a search most proposals are old.
  std::string refusal_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_PROPOSER_H_
