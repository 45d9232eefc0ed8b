// Gaussian posteriors of the roughness of sizes and configurations.
#include "bench/informed_search.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace dsat {
namespace {

using Candidate = SimulatedSurface::Candidate;

// The expected gain of learning a value whose posterior mean will move by `deviation`, where the
// best of the others is better by `ahead`.
double ExpectedGain(double ahead, double deviation) {
  if (deviation <= 0) return 0;
  const double z = -ahead / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
  return deviation * (density + z * std::erfc(-z / std::sqrt(2)) / 2);
}

// Logs of times, of which the smooth part is the prior mean.
class Posterior {
 public:
  Posterior(const Family& family, const std::vector<Candidate>& candidates)
      : family_(family), candidates_(candidates) {}

  // REQUIRES: more than zero candidates.
  void Update() {
    const auto n = static_cast<Eigen::Index>(measured_.size());
    Eigen::MatrixXd covariance(n, n);
    Eigen::VectorXd surprises(n);
    for (Eigen::Index i = 0; i < n; ++i) {
      const auto& [id, log_ms] = measured_[static_cast<size_t>(i)];
      surprises(i) = log_ms - std::log(candidates_[id].smooth_ms);
      for (Eigen::Index j = 0; j < n; ++j)
        covariance(i, j) = Covariance(id, measured_[static_cast<size_t>(j)].first);
      covariance(i, i) += std::pow(candidates_[id].launch_noise, 2);
    }
    const Eigen::LLT<Eigen::MatrixXd> factor(covariance);
    const Eigen::VectorXd weights = factor.solve(surprises);
    means_.resize(candidates_.size());
    variances_.resize(candidates_.size());
    for (size_t c = 0; c < candidates_.size(); ++c) {
      Eigen::VectorXd shared(n);
      for (Eigen::Index i = 0; i < n; ++i)
        shared(i) = Covariance(c, measured_[static_cast<size_t>(i)].first);
      means_[c] = std::log(candidates_[c].smooth_ms) + shared.dot(weights);
      const double explained = n == 0 ? 0 : shared.dot(factor.solve(shared));
      variances_[c] = std::max(Covariance(c, c) - explained, 0.0);
    }
  }

  size_t Pick() const {
    return static_cast<size_t>(std::ranges::min_element(means_) - means_.begin());
  }

  size_t Next() const {
    const size_t pick = Pick();
    double second = kNever;
    for (size_t c = 0; c < means_.size(); ++c)
      second = c == pick ? second : std::min(second, means_[c]);
    size_t best = pick;
    double most = -1;
    for (size_t c = 0; c < means_.size(); ++c) {
      const double noise = std::pow(candidates_[c].launch_noise, 2);
      const double deviation = variances_[c] / std::sqrt(variances_[c] + noise);
      const double ahead = std::abs(means_[c] - (c == pick ? second : means_[pick]));
      const double gain = ExpectedGain(ahead, deviation);
      if (gain > most) best = c;
      most = std::max(most, gain);
    }
    return best;
  }

  void Add(size_t candidate, double log_ms) { measured_.emplace_back(candidate, log_ms); }

 private:
  double Covariance(size_t a, size_t b) const {
    const double of_size = std::pow(family_.size_roughness, 2);
    const double of_config = std::pow(family_.config_roughness, 2);
    return (candidates_[a].size == candidates_[b].size ? of_size : 0) + (a == b ? of_config : 0);
  }

  const Family& family_;
  const std::vector<Candidate>& candidates_;
  std::vector<std::pair<size_t, double>> measured_;
  std::vector<double> means_, variances_;
};

}  // namespace

RunResult RunInformedSearch(const SimulatedSurface& surface, const ExperimentSpec& spec,
                            const SearchSpace& space, int64_t launches, uint64_t seed) {
  const Family& family = surface.family();
  std::vector<Candidate> candidates = surface.Candidates(space, spec);
  const double best_ms = std::ranges::min(candidates, {}, &Candidate::sample_ms).sample_ms;
  // Combinations of the settings that a stage ignores are the same configuration.
  const auto key = [](const Candidate& c) { return std::pair(c.smooth_ms, c.sample_ms); };
  std::ranges::sort(candidates, {}, key);
  candidates.erase(std::ranges::unique(candidates, {}, key).begin(), candidates.end());
  constexpr size_t kMost = 2000;  // The others are several deviations slower.
  if (candidates.size() > kMost) candidates.resize(kMost);

  RunResult result;
  result.launches = static_cast<double>(launches);
  result.launch_noise = family.launch_noise;
  result.roughness = std::hypot(family.size_roughness, family.config_roughness);
  Posterior posterior(family, candidates);
  Rng rng(seed, 0, "informed");
  for (int64_t launch = 0; launch <= launches; ++launch) {
    posterior.Update();
    const double loss = candidates[posterior.Pick()].sample_ms / best_ms - 1;
    result.moments.push_back({static_cast<double>(launch), loss});
    const size_t next = posterior.Next();
    posterior.Add(
        next, std::log(candidates[next].sample_ms) + candidates[next].launch_noise * rng.Normal());
  }
  return result;
}

}  // namespace dsat
