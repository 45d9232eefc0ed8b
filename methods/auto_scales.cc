// How irregular and how noisy the machine is, and which launches were slowed down.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "methods/auto_regression.h"

namespace dsat {

double AutoRegression::LogEvidence(const Scales& scales) const {
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales));
  const double fit = differences_.dot(factor.solve(differences_));
  const double determinant = 2 * factor.matrixLLT().diagonal().array().log().sum();
  const auto surprise = [](double scale, const AutoPriors::Normal& usual) {
    const double z = std::log(scale / usual.mean) / usual.sd;
    return z * z;
  };
  const double prior = surprise(scales.residual, kAutoResidual.residual) +
                       surprise(scales.wide, kAutoResidual.wide) +
                       surprise(scales.own, kAutoResidual.own) +
                       surprise(scales.launch, kAutoResidual.launch) +
                       (scales.drift > 0 ? kAutoResidual.drift_penalty : 0);
  return -0.5 * (fit + determinant + prior);
}

// One scale after the other, twice; but what differs between launches may be knobs or the launches
// themselves, which are compared together.
void AutoRegression::ChooseScales() {
  const bool has_times =
      std::ssize(observations_) >= kAutoResidual.least_to_drift &&
      std::ranges::any_of(observations_, [](const auto& o) { return o.ended_s > 0; });
  const std::array one = {scales_.wide};
  const std::span<const double> wide =
      by_wide_.maxCoeff() > 0 ? std::span<const double>(kAutoResidual.wides) : one;
  double best = -INFINITY;
  const auto consider = [&](const Scales& scales) {
    const double evidence = LogEvidence(scales);
    if (!(evidence > best)) return;
    best = evidence;
    scales_ = scales;
  };
  const auto vary = [&](double Scales::*scale, std::span<const double> values) {
    Scales now = scales_;
    for (const double value : values) {
      now.*scale = value;
      consider(now);
    }
  };
  for (int round = 0; round < 2; ++round) {
    if (by_own_.maxCoeff() > 0) vary(&Scales::own, kAutoResidual.owns);
    vary(&Scales::residual, kAutoResidual.residuals);
    Scales now = scales_;
    for (const double knobs : wide) {
      now.wide = knobs;
      for (const double launch : kAutoResidual.launches) {
        now.launch = launch;
        consider(now);
      }
    }
    if (has_times) vary(&Scales::drift, kAutoResidual.drifts);
  }
}

// A launch may be slowed down by something else, and none is sped up: a measurement that is much
// slower than what all others say of it counts less, by the probability that this has happened.
void AutoRegression::WeighOutliers() {
  const int64_t n = std::ssize(observations_);
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales_));
  const Matrix inverse = factor.solve(Matrix::Identity(n, n));
  const Vector solution = factor.solve(differences_);
  for (int64_t i = 0; i < n; ++i) {
    // From what the others say, without its noise and with it.
    const double difference = solution[i] / inverse(i, i);
    const double noise = noise_[i] + scales_.launch * scales_.launch;
    const double variance = std::max(1 / inverse(i, i) - noise / weights_[i], 0.0) + noise;
    const auto density = [&](double of) {
      return std::exp(-0.5 * difference * difference / of) / std::sqrt(of);
    };
    const double slowed = kAutoResidual.slowed * 2 *
                          density(variance + kAutoResidual.slowed_by * kAutoResidual.slowed_by);
    const double usual = (1 - kAutoResidual.slowed) * density(variance);
    weights_[i] =
        difference <= 0 ? 1 : std::max(usual / (usual + slowed), kAutoResidual.least_weight);
  }
}

// The evidence, times the prior probability of these outliers.
double AutoRegression::LogProbability() {
  Linearize();
  const auto num_slowed = std::ranges::count_if(weights_, [](double w) { return w < 0.5; });
  return LogEvidence(scales_) +
         num_slowed * std::log(kAutoResidual.slowed / (1 - kAutoResidual.slowed));
}

// Fits parameters, scales and weights in turn; `weigh_first` is to weigh the measurements by the
// scales of the prior, and by what knobs without a prediction may change at most.
void AutoRegression::SettleFromPrior(bool weigh_first) {
  parameters_ = prior_;
  scales_ = {};
  if (weigh_first && by_wide_.maxCoeff() > 0) scales_.wide = kAutoResidual.wides.back();
  if (weigh_first && by_own_.maxCoeff() > 0) scales_.own = kAutoResidual.owns.back();
  weights_.setOnes();
  for (int round = 0; round < 3; ++round) {
    for (int iteration = 0; iteration < 8; ++iteration) {
      if (Step() < 1e-3) break;
    }
    if (round == 2) break;
    const bool weigh_now = weigh_first && round == 0;
    if (!weigh_now) ChooseScales();
    if (std::ssize(observations_) >= kAutoResidual.least_to_weigh) WeighOutliers();
    if (weigh_now) ChooseScales();
  }
}

// A measurement that was slowed down may be explained by a large scale as well, which then hides
// that it is an outlier: the more probable of the two explanations counts.
void AutoRegression::Settle() {
  SettleFromPrior(false);
  if (std::ssize(observations_) < kAutoResidual.least_to_weigh) return;
  const AutoTimeModel::Vector parameters = parameters_;
  const Scales scales = scales_;
  const Vector weights = weights_;
  const double probability = LogProbability();
  SettleFromPrior(true);
  if (LogProbability() > probability) return;
  parameters_ = parameters;
  scales_ = scales;
  weights_ = weights;
}

}  // namespace dsat
