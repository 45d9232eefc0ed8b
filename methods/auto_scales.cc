// How irregular and how noisy the machine is, and which launches were slowed down.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "methods/auto_regression.h"

namespace dsat {
namespace {

// This share of launches is slowed down, by about so much.
constexpr double kSlowed = 0.03;
constexpr double kSlowedBy = 0.2;
// The scales that knobs may have.
constexpr std::array kWideScales = {0.0005, 0.0015, 0.004, 0.01, 0.03};
constexpr std::array kOwnScales = {0.01, 0.03, 0.1, 0.3};
// Fewer measurements do not show which of them is slow.
constexpr int kLeastToWeigh = 5;

}  // namespace

double AutoRegression::LogEvidence(const Scales& scales) const {
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales));
  const double fit = differences_.dot(factor.solve(differences_));
  const double determinant = 2 * factor.matrixLLT().diagonal().array().log().sum();
  const auto squared = [](double x) { return x * x; };
  const Scales usual;
  const double prior = squared(std::log(scales.residual / usual.residual) / 0.8) +
                       squared(std::log(scales.wide / usual.wide) / 1.2) +
                       squared(std::log(scales.own / usual.own) / 1.2) +
                       squared(std::log(scales.launch / usual.launch) / 0.7) +
                       (scales.drift > 0 ? 2 : 0);
  return -0.5 * (fit + determinant + prior);
}

// One scale after the other, twice; but what differs between launches may be knobs or the launches
// themselves, which are compared together.
void AutoRegression::ChooseScales() {
  const bool has_times =
      observations_.size() >= 6 &&
      std::ranges::any_of(observations_, [](const auto& o) { return o.ended_s > 0; });
  const std::array one = {scales_.wide};
  const std::span<const double> wide =
      by_wide_.maxCoeff() > 0 ? std::span<const double>(kWideScales) : one;
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
    if (by_own_.maxCoeff() > 0) vary(&Scales::own, kOwnScales);
    vary(&Scales::residual, std::array{0.006, 0.012, 0.025, 0.05, 0.1, 0.2});
    Scales now = scales_;
    for (const double knobs : wide) {
      now.wide = knobs;
      for (const double launch : {0.004, 0.008, 0.015, 0.03, 0.06}) {
        now.launch = launch;
        consider(now);
      }
    }
    if (has_times) vary(&Scales::drift, std::array{0.0, 0.02, 0.06});
  }
}

// A launch may be slowed down by something else, and none is sped up: a measurement that is much
// slower than what all others say of it counts less, by the probability that this has happened.
void AutoRegression::WeighOutliers() {
  const auto n = static_cast<Eigen::Index>(observations_.size());
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales_));
  const Matrix inverse = factor.solve(Matrix::Identity(n, n));
  const Vector solution = factor.solve(differences_);
  for (Eigen::Index i = 0; i < n; ++i) {
    // From what the others say, without its noise and with it.
    const double difference = solution[i] / inverse(i, i);
    const double noise = noise_[i] + scales_.launch * scales_.launch;
    const double variance = std::max(1 / inverse(i, i) - noise / weights_[i], 0.0) + noise;
    const auto density = [&](double of) {
      return std::exp(-0.5 * difference * difference / of) / std::sqrt(of);
    };
    const double slowed = kSlowed * 2 * density(variance + kSlowedBy * kSlowedBy);
    const double usual = (1 - kSlowed) * density(variance);
    weights_[i] = difference <= 0 ? 1 : std::max(usual / (usual + slowed), 0.03);
  }
}

// The evidence, times the prior probability of these outliers.
double AutoRegression::LogProbability() {
  Linearize();
  const auto num_slowed = std::ranges::count_if(weights_, [](double w) { return w < 0.5; });
  return LogEvidence(scales_) + static_cast<double>(num_slowed) * std::log(kSlowed / (1 - kSlowed));
}

// Fits parameters, scales and weights in turn; `weigh_first` is to weigh the measurements by the
// scales of the prior, and by what knobs without a prediction may change at most.
void AutoRegression::SettleFromPrior(bool weigh_first) {
  parameters_ = prior_;
  scales_ = {};
  if (weigh_first && by_wide_.maxCoeff() > 0) scales_.wide = kWideScales.back();
  if (weigh_first && by_own_.maxCoeff() > 0) scales_.own = kOwnScales.back();
  weights_.setOnes();
  for (int round = 0; round < 3; ++round) {
    for (int iteration = 0; iteration < 8; ++iteration) {
      if (Step() < 1e-3) break;
    }
    if (round == 2) break;
    const bool weigh_now = weigh_first && round == 0;
    if (!weigh_now) ChooseScales();
    if (std::ssize(observations_) >= kLeastToWeigh) WeighOutliers();
    if (weigh_now) ChooseScales();
  }
}

// A measurement that was slowed down may be explained by a large scale as well, which then hides
// that it is an outlier: the more probable of the two explanations counts.
void AutoRegression::Settle() {
  SettleFromPrior(false);
  if (std::ssize(observations_) < kLeastToWeigh) return;
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
