// The working folder of trials whose files come from several places (--include).
#ifndef DSAT_SEARCHER_INPUT_TRIAL_CONTEXT_H_
#define DSAT_SEARCHER_INPUT_TRIAL_CONTEXT_H_

#include <filesystem>
#include <string>
#include <vector>

namespace dsat {

// A folder of symbolic links: one to every entry of the model folder, but not to the one that the
// folder itself lies in, and one, by its last name, to every included path.
class TrialContext {
 public:
  // Makes it at `dir`. What an earlier context there had links to is replaced; what programs have
  // written there stays. Throws kNotFound if a path is missing, kInvalidArgument naming both if two
  // would have one name, kFailedPrecondition if `dir` is there and no context; nothing has changed
  // then.
  TrialContext(const std::string& dir, const std::string& model_dir,
               const std::vector<std::string>& include);
  TrialContext(const TrialContext&) = delete;
  TrialContext& operator=(const TrialContext&) = delete;
  // Unless it is kept, what was at `dir` before is there again.
  ~TrialContext();

  // Absolute.
  std::string dir() const { return dir_.string(); }
  // Removes what was at `dir` before.
  void Keep();

 private:
  std::filesystem::path dir_;
  std::filesystem::path before_;  // The earlier context; "" if there was none.
  bool kept_ = false;
};

// "<parent>/context-<n>" with the first number that is free.
std::string NewContextDir(const std::string& parent);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_TRIAL_CONTEXT_H_
