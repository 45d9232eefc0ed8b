// The state of a search (search.cc, search_confirm.cc).
#ifndef DSAT_SEARCHER_SEARCH_SEARCH_STATE_H_
#define DSAT_SEARCHER_SEARCH_SEARCH_STATE_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "searcher/search/proposer.h"
#include "searcher/search/search.h"

namespace dsat {

struct Search::State {
  ExperimentSpec spec;
  std::map<TrialId, Trial> trials;
  int64_t num_running = 0;
  int64_t num_again = 0;  // Trials that RunsAgain.
  std::optional<TrialId> submitted;
  std::optional<TrialId> candidate;  // Of dsat check.
  // How many steps of the ladder of profiling trials did not fit, and why the first did not.
  size_t num_misfits = 0;
  std::string submitted_misfit;
  // Set together, once the profile is known.
  std::optional<ModelProfile> profile;
  std::optional<SearchSpace> space;
  std::unique_ptr<Proposer> proposer;
  ExperimentSpec tuned;  // The spec whose ds_config the method starts from.
  // The next trial, kept if Finished has looked for one: it does so while nothing runs, so that
  // nothing but a change of limits can come before the next Ask.
  struct Next {
    TrialKind kind = TrialKind::kSearch;
    Draft draft;
    std::optional<TrialId> confirms = std::nullopt;
    int64_t steps = 0;
  };
  std::optional<Next> next;
  bool method_is_over = false;
  std::string end_reason;
  std::set<TrialId> withdrawn;  // Stopped because the search had ended, which may go on.
  std::optional<Confirmation> confirmation;
  std::map<TrialId, std::string> left_out;  // By confirmations before this one.
  size_t num_forgiven = 0;  // That had dropped out when the method has last tried a configuration.
  TrialId first_after_submitted = 0;            // Of those that were asked for after its end.
  bool confirms = false;                        // A trial of it has started.
  bool goes_on = false;                         // Limits were raised; nothing has started since.
  std::unique_ptr<Predictor> predictor;         // Made when it is first asked.
  std::map<std::string, std::string> verdicts;  // Of the predictor, by effective configuration.
  std::vector<Refusal> last_refused;
  int64_t num_refused = 0;

  bool HasCapacity(bool is_replay) const;  // A replayed search may have had higher limits.
  std::map<TrialId, std::string> Dropped() const;
  bool MayWin(const std::optional<TrialId>& id) const;
  std::string WhyNoAnswer() const;
  bool HasLostMany() const;
  bool NeedsWhatRanOut(const Trial& trial) const;
  bool HasLostFinalists() const;
  bool Compares() const { return !spec.candidate.is_null(); }
  void SetProfile(const ModelProfile& learned, const std::optional<SearchSpace>& given);
  std::string Misfit(const Draft& draft);
  std::optional<Next> MakeNext(const RecordedAsk* recorded);
  std::optional<Next> NextOfMethod(const RecordedAsk* recorded);
  std::optional<Next> NextToCompare();
  std::optional<Next> NextProfile(bool is_replay);
  std::optional<Next> NextConfirm(const RecordedAsk* recorded);
  std::vector<TrialId> Arms() const;
  Findings Find() const;
  Json BestConfigOf(TrialId id) const;
  void ForgetNext();
  Trial Start(const Next& next);
  Trial& RunningTrial(TrialId id);
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SEARCH_SEARCH_STATE_H_
