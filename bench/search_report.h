// The results of simulated searches, and the rows that search_quality prints of them.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace dsat {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// After a launch has ended.
struct Moment {
  double launches = 0;
  double loss = kNever;
};

struct RunResult {
  std::vector<Moment> moments;
  double launches = 0, confirming = 0, out_of_memory = 0, ask_ms = 0, asks = 0;
  std::optional<double> others_at_most;
  bool nothing_better = false;
  double launch_noise = 0, roughness = 0;  // The machine has these.
  std::optional<bool> factor_holds;        // The interval has the true factor.

  // The first moment from which on the loss stays at most this; nullptr if there is none.
  const Moment* Reached(double loss) const {
    const Moment* first = nullptr;
    for (const Moment& moment : moments) {
      if (moment.loss > loss) first = nullptr;
      if (moment.loss <= loss && first == nullptr) first = &moment;
    }
    return first;
  }
  // The loss of the pick after this many launches, or of the last one.
  double LossAfter(double launches_so_far) const {
    double loss = kNever;
    for (const Moment& moment : moments)
      loss = moment.launches <= launches_so_far ? moment.loss : loss;
    return loss;
  }
  double loss() const { return moments.empty() ? kNever : moments.back().loss; }
};

// Prints the names of the columns, and a row for these runs; `what` has the first three columns.
void ReportHead();
void Report(const std::string& what, const std::vector<RunResult>& runs);
// Prints rows by how much launches vary and how rough machines are; `what` has two columns.
void ReportStrata(const std::string& what, const std::vector<RunResult>& runs);
// Prints how often the 95 % interval of a factor has the true factor.
void ReportFactors(const std::vector<RunResult>& runs);

}  // namespace dsat
