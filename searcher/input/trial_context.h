// The working folder of trials with files from several folders (--include).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dsat {

// A folder of symbolic links to every entry of the model folder, except the one that contains this
// folder, and to every included path by its last name.
class TrialContext {
 public:
  // Creates it at `dir`. The links of an earlier context there are replaced; files that programs
  // have written there are kept. Throws kNotFound if a path is missing, kInvalidArgument naming
  // both if two paths have the same name, kFailedPrecondition if `dir` exists and is not a context.
  // Nothing is changed then.
  TrialContext(const std::string& dir, const std::string& model_dir,
               const std::vector<std::string>& include);
  TrialContext(const TrialContext&) = delete;
  TrialContext& operator=(const TrialContext&) = delete;
  // Restores what was at `dir` before, unless Keep was called.
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

// "<parent>/context-<n>" with the first unused number.
std::string NewContextDir(const std::string& parent);

}  // namespace dsat
