// Between a method and its trials: equal is equal.
//
// A proposal whose effective configuration has run already is answered from the record; one whose
// equal is running waits for it; one that breaks a rule of ds_config, or that the caller refuses,
// is told infeasible without a trial. What is left becomes a trial. With compat_determined equal
// configurations run again.
#ifndef DSAT_SEARCHER_PROPOSER_H_
#define DSAT_SEARCHER_PROPOSER_H_

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

// A trial to be.
struct Draft {
  Assignment assignment;
  Json ds_config;   // Resolved.
  std::string key;  // Its effective configuration.
  // The proposals before it that the caller refused.
  std::vector<Refusal> refused;
};

class Proposer {
 public:
  // After so many proposals in a row that need no trial, the method has nothing new to say.
  static constexpr int kMaxAnsweredInARow = 200;

  // `spec` must outlive the proposer. `space` and `num_params` come from the profile.
  Proposer(const ExperimentSpec& spec, const SearchSpace& space, int64_t num_params);

  // The submitted configuration as it stands. Throws kInvalidArgument if it breaks a rule.
  Draft DraftSubmitted() const;

  // Why a draft cannot run, "" if it may.
  using Misfit = std::function<std::string(const Draft& draft)>;

  // The next proposal of the method that needs a trial, nullopt if there is none now; then, as when
  // `misfit` throws, the call has left no trace. `misfit` is asked once for every configuration
  // that neither runs nor has run. A draft that was returned must be started before the next call.
  std::optional<Draft> Next(const Misfit& misfit);

  // The draft runs as this trial from now on.
  void Start(const Draft& draft, TrialId id);
  // A started trial has ended: its proposal, and those that waited for it, are told.
  void End(const Trial& finished);

  // Why the latest proposal that was told infeasible without a trial was, "" if none has been.
  const std::string& refusal() const { return refusal_; }

 private:
  // One call of the method.
  struct Call {
    int64_t tag = 0;
    std::shared_ptr<const Trial> told;  // Null: Ask.
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

  Draft MakeDraft(const Assignment& assignment) const;
  const Resolved& Resolve(const Assignment& assignment);
  // What one call of Next has done beside moving the method; it counts once there is a draft.
  struct Pending {
    std::vector<std::pair<std::string, int64_t>> waiting;      // Key, tag.
    std::map<std::string, std::shared_ptr<const Trial>> told;  // By key.
    std::vector<Refusal> refused;
  };

  std::optional<Draft> Seek(const Misfit& misfit);
  std::optional<Draft> Consider(const Proposal& proposal, const Misfit& misfit, Pending& pending);
  std::shared_ptr<const Trial> Refuse(const Proposal& proposal, const std::string& reason);
  std::optional<Proposal> AskMethod();
  void TellMethod(int64_t tag, std::shared_ptr<const Trial> finished);
  void RewindTo(size_t num_calls);

  const ExperimentSpec* spec_;
  SearchSpace space_;
  int64_t num_params_;
  std::unique_ptr<Method> method_;
  // The method as it was before calls_: what it is rewound from.
  std::unique_ptr<Method> base_;
  std::vector<Call> calls_;
  int64_t num_proposals_ = 0;                // That the method has made.
  bool in_vain_ = false;                     // Nothing has changed since Next gave nothing.
  std::map<std::string, Record> records_;    // By key.
  std::map<TrialId, std::string> key_of_;    // Of started trials.
  std::optional<int64_t> drafted_tag_;       // The method's draft that is not started yet.
  std::map<Assignment, Resolved> resolved_;  // A cache: late in a search most proposals are old.
  std::string refusal_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROPOSER_H_
