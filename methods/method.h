// The interface of search methods.
//
// A method is a deterministic function of (space, options, seed, the sequence of asks and tells).
// It uses no clock, no I/O and no threads, and its state is not saved: an experiment is resumed by
// replaying its asks and tells from the log (searcher/search.h).
#ifndef DSAT_METHODS_METHOD_H_
#define DSAT_METHODS_METHOD_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The result of Ask: the keys to set, and a tag that the method gets back in Tell to identify its
// trial.
struct Proposal {
  Assignment assignment;
  int64_t tag = 0;
};

class Method {
 public:
  virtual ~Method() = default;

  // The next assignment to try. nullopt while the method needs the result of a running trial, and
  // always after its last proposal; a call that returns nullopt changes no state. Never blocks. The
  // caller decides how many trials run at once.
  virtual std::optional<Proposal> Ask() = 0;

  // Tells the end of the proposal with this tag; `finished.state` is not kRunning. kFailed is not
  // evidence and must not change a feasibility bound. Called exactly once for every proposal, in
  // any order.
  virtual void Tell(int64_t tag, const Trial& finished) = 0;

  // An independent copy of this method in its present state.
  virtual std::unique_ptr<Method> Clone() const = 0;

  // The next point to measure in the process of a running trial; nullopt to end it.
  virtual std::optional<Point> NextPoint(const Trial& running);
};

// One row of the table of methods.
struct MethodInfo {
  std::string name;
  std::string summary;  // One line for --help.
  std::unique_ptr<Method> (*make)(const SearchSpace& space, const SearchOptions& options);
};

// All methods, in the order shown to users.
std::span<const MethodInfo> Methods();

// The method of that name. Throws kInvalidArgument naming the known methods.
const MethodInfo& FindMethod(const std::string& name);

}  // namespace dsat

#endif  // DSAT_METHODS_METHOD_H_
