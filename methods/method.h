// Start here: what a search method is.
//
// A method is a deterministic function of (space, options, seed, the sequence of asks and tells).
// It knows no clock, no I/O and no threads, and has no save or load code: an experiment is resumed
// by replaying its asks and tells from the log (searcher/search.h).
#ifndef DSAT_METHODS_METHOD_H_
#define DSAT_METHODS_METHOD_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// What Ask gives: the keys to set, and a tag the method gets back in Tell, so that it need not find
// its own trial again by its assignment.
struct Proposal {
  Assignment assignment;
  int64_t tag = 0;
};

class Method {
 public:
  virtual ~Method() = default;

  // The next assignment to try. nullopt while it must first be told of a running trial, and forever
  // once it has nothing left to propose; asking in vain changes nothing. Never blocks. May be
  // called with any number of trials running: how many run at once is the caller's business.
  virtual std::optional<Proposal> Ask() = 0;

  // The proposal with this tag has ended: `finished.state` is not kRunning. kFailed is no evidence:
  // it must not move a feasibility bound. Called exactly once for every proposal, in any order.
  virtual void Tell(int64_t tag, const Trial& finished) = 0;

  // The same method in the same state, independent of this one.
  virtual std::unique_ptr<Method> Clone() const = 0;

  // The next point to measure in the process of a trial that is still running, nullopt to end it.
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

// The method of that name. Throws kInvalidArgument naming the known ones.
const MethodInfo& FindMethod(const std::string& name);

}  // namespace dsat

#endif  // DSAT_METHODS_METHOD_H_
