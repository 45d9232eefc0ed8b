// The interface of search methods.
//
// A method is a deterministic function of (space, options, seed, the sequence of asks and tells).
// It uses no clock, no I/O and no threads, and its state is not saved: an experiment is resumed by
// replaying its asks and tells from the log (searcher/search/search.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// The result of Ask: the keys to set, and a tag that the method gets back in Tell to identify its
// trial.
struct Proposal {
  Assignment assignment;
  int64_t tag = 0;
  bool repeat = false;       // Run it even if an equal configuration has run.
  double give_up_below = 0;  // As Trial's.
};

// How much slower the machine has become between the first and the last measurement, as a share of
// the time of a step; negative if it became faster.
struct MachineDrift {
  double change = 0;
  double error = 0;  // Standard error of `change`.
  double hours = 0;  // Between these measurements.
};

// The conclusion from all that a method was told.
struct Conclusion {
  // The proposals with the best configurations, best first. Empty: those with the best metric.
  std::vector<int64_t> finalists;
  // The believed speeds of proposals, relative to each other, by tag.
  std::vector<std::pair<int64_t, double>> speeds = {};
  std::optional<MachineDrift> drift;  // If it is more than twice its error.
  std::string warm_start;  // One line on what became of the earlier experiment; "" without one.
};

// How much faster than a pick the other configurations of the space may be.
struct OthersBound {
  // With a probability of 95 %, none is faster by more than this factor; at least 1.
  double at_most = 1;
  int64_t num_compared = 0;  // The configurations whose expected speeds were compared.
};

class Method {
 public:
  virtual ~Method() = default;

  // The next assignment to try. nullopt while the method needs the result of a running trial, and
  // always after its last proposal; a call that returns nullopt changes no state. Never blocks. The
  // caller decides how many trials run at once.
  virtual std::optional<Proposal> Ask() = 0;
  // As Ask, in a replay: `recorded` is the assignment that was proposed, nullopt if none was. A
  // method whose decisions take long takes it over. By default, it decides again.
  virtual std::optional<Proposal> Replay(const std::optional<Assignment>& /*recorded*/) {
    return Ask();
  }

  // Tells the end of the proposal with this tag; `finished.state` is not kRunning. kFailed is not
  // evidence about memory and must not change a feasibility bound. Called exactly once for every
  // proposal, in any order.
  virtual void Tell(int64_t tag, const Trial& finished) = 0;

  // Tells the end of a trial that the method did not propose, such as that of the submitted
  // configuration. By default it is ignored.
  virtual void Observe(const Trial& /*finished*/) {}

  // A point of the running proposal with this tag was measured, the last one of running.points.
  // Called once for every measured point. By default it is ignored.
  virtual void Measured(int64_t /*tag*/, const Trial& /*running*/) {}
  // The next point to measure in the same process; nullopt, the default, ends the trial. Called
  // once after Measured, unless a replay knows that the trial has ended since.
  virtual std::optional<Point> NextPoint(int64_t /*tag*/, const Trial& /*running*/) {
    return std::nullopt;
  }

  // By default nothing: the trials with the best metric are the finalists.
  virtual Conclusion Conclude() const { return {}; }

  // How much faster than that of `pick`, a trial that was told or observed, at its best point, the
  // configurations of the space may be. nullopt, the default, if the method does not know.
  virtual std::optional<OthersBound> BoundOthers(const Trial& /*pick*/) const {
    return std::nullopt;
  }
  // The batch sizes with which `pick` promises the most at a larger global batch than the one that
  // the space keeps. nullopt, the default, if that is not worth a launch. REQUIRES: it keeps one.
  virtual std::optional<Point> LargerBatch(const Trial& /*pick*/) const { return std::nullopt; }
  // One line on what bounds the speed of `pick`, and what would help next; "" if the method does
  // not know.
  virtual std::string BoundOf(const Trial& /*pick*/) const { return ""; }
  // The standard deviation of the logarithm of the speed between two launches of one configuration.
  // nullopt, the default, if the method does not know.
  virtual std::optional<double> LaunchNoise() const { return std::nullopt; }
  // With so small a bound, a method needs no further trial.
  static constexpr double kNearBest = 1.01;
};

}  // namespace dsat
