// How irregular and how noisy the machine is, and which launches were slowed down.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "methods/auto_regression.h"

namespace dsat {
namespace {

// The values of a scale that are tried, ascending.
std::vector<double> ToTry(const AutoPriors::Normal& usual) {
  std::vector<double> values;
  for (int sds = -kAutoResidual.most_sds; sds <= kAutoResidual.most_sds; ++sds)
    values.push_back(usual.mean * std::exp(sds * usual.sd));
  return values;
}

}  // namespace

std::vector<double> AutoRegression::DriftsToTry() {
  std::vector<double> values = ToTry(kAutoResidual.drift);
  values.insert(values.begin(), 0);
  return values;
}

double AutoRegression::LogEvidence(const Scales& scales) const {
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales));
  const double fit = differences_.dot(factor.solve(differences_));
  const double determinant = 2 * factor.matrixLLT().diagonal().array().log().sum();
  const auto surprise = [](double scale, const AutoPriors::Normal& usual) {
    const double z = std::log(scale / usual.mean) / usual.sd;
    return z * z;
  };
  const double prior =
      surprise(scales.residual, kAutoResidual.residual) +
      surprise(scales.size, kAutoResidual.size) + surprise(scales.config, kAutoResidual.config) +
      surprise(scales.wide, kAutoResidual.wide) + surprise(scales.own, kAutoResidual.own) +
      surprise(scales.launch, kAutoResidual.launch) +
      // No drift is as probable as all others.
      (scales.drift > 0 ? 2 + surprise(scales.drift, kAutoResidual.drift) : 0);
  return -0.5 * (fit + determinant + prior);
}

// One scale after the other; but what differs between launches may be knobs, rough configurations
// or the launches themselves, which are compared in pairs.
void AutoRegression::ChooseScales() {
  const bool has_times =
      std::ssize(observations_) >= kAutoResidual.least_to_drift &&
      std::ranges::any_of(observations_, [](const auto& o) { return o.ended_s > 0; });
  double best = -INFINITY;
  const auto vary = [&](Scales now, double Scales::*scale, const std::vector<double>& values) {
    for (const double value : values) {
      now.*scale = value;
      const double evidence = LogEvidence(now);
      if (!(evidence > best)) continue;
      best = evidence;
      scales_ = now;
    }
  };
  const auto vary_with_launch = [&](double Scales::*scale, const AutoPriors::Normal& usual) {
    Scales now = scales_;
    for (const double value : ToTry(usual)) {
      now.*scale = value;
      vary(now, &Scales::launch, ToTry(kAutoResidual.launch));
    }
  };
  if (by_own_.maxCoeff() > 0) vary(scales_, &Scales::own, ToTry(kAutoResidual.own));
  vary(scales_, &Scales::residual, ToTry(kAutoResidual.residual));
  vary(scales_, &Scales::size, ToTry(kAutoResidual.size));
  if (by_wide_.maxCoeff() > 0) vary_with_launch(&Scales::wide, kAutoResidual.wide);
  vary_with_launch(&Scales::config, kAutoResidual.config);
  if (has_times) vary(scales_, &Scales::drift, DriftsToTry());
  // Between the values that were tried.
  for (const auto& [scale, usual] : {std::pair(&Scales::residual, kAutoResidual.residual),
                                     {&Scales::size, kAutoResidual.size},
                                     {&Scales::config, kAutoResidual.config},
                                     {&Scales::launch, kAutoResidual.launch}}) {
    const double now = scales_.*scale, factor = std::exp(0.5 * usual.sd);
    vary(scales_, scale, {now / factor, now * factor});
  }
}

// A launch may be slowed down by something else, and none is sped up: a measurement that is much
// slower than what all others say of it counts less, by the probability that this has happened.
void AutoRegression::WeighOutliers(bool by_place) {
  const int64_t n = std::ssize(observations_);
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales_));
  const Matrix inverse = factor.solve(Matrix::Identity(n, n));
  const Vector solution = factor.solve(differences_);
  Vector usual_weights(n), differences(n), variances(n);
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
    usual_weights[i] =
        difference <= 0 ? 1 : std::max(usual / (usual + slowed), kAutoResidual.least_weight);
    differences[i] = difference;
    variances[i] = variance;
  }
  if (by_place) LearnPlaces(usual_weights, differences, variances);
  for (int64_t i = 0; i < n; ++i)
    weights_[i] = usual_weights[i] / NoiseOf(observations_[i].point.config.place);
}

// The noise of each place, relative to the mean, by the squared differences from what others say,
// of which noise is a part; `usual` are the probabilities that measurements are no outliers.
void AutoRegression::LearnPlaces(const Vector& usual, const Vector& differences,
                                 const Vector& variances) {
  constexpr double kMost = 9;  // In standard deviations, squared: structure, not noise.
  std::vector<double> excess, shares;
  for (int64_t i = 0; i < std::ssize(observations_); ++i) {
    const auto place = static_cast<size_t>(observations_[i].point.config.place);
    excess.resize(std::max(excess.size(), place + 1), 0);
    shares.resize(excess.size(), 0);
    const double share = usual[i] * (noise_[i] + scales_.launch * scales_.launch) / variances[i];
    const double square = differences[i] * differences[i] / variances[i];
    excess[place] += share * (std::min(square, kMost) - 1);
    shares[place] += share * share;
  }
  place_noise_.assign(excess.size(), 1);
  for (size_t place = 0; place < excess.size(); ++place)
    place_noise_[place] +=
        std::max(excess[place], -shares[place]) / (kAutoResidual.place_launches + shares[place]);
  double mean = 0;
  for (const AutoObservation& o : observations_)
    mean += NoiseOf(o.point.config.place) / static_cast<double>(observations_.size());
  for (double& noise : place_noise_)
    noise /= mean;
}

// The evidence, times the prior probability of these outliers.
double AutoRegression::LogProbability() {
  Linearize();
  int64_t num_slowed = 0;
  for (int64_t i = 0; i < weights_.size(); ++i)
    num_slowed += weights_[i] * NoiseOf(observations_[i].point.config.place) < 0.5 ? 1 : 0;
  return LogEvidence(scales_) +
         num_slowed * std::log(kAutoResidual.slowed / (1 - kAutoResidual.slowed));
}

// Fits parameters, scales and weights in turn; `weigh_first` is to weigh the measurements by the
// scales of the prior, and by what knobs without a prediction may change at most.
void AutoRegression::SettleFromPrior(bool weigh_first) {
  parameters_ = prior_;
  scales_ = {};
  if (weigh_first && by_wide_.maxCoeff() > 0) scales_.wide = ToTry(kAutoResidual.wide).back();
  if (weigh_first && by_own_.maxCoeff() > 0) scales_.own = ToTry(kAutoResidual.own).back();
  weights_.setOnes();
  place_noise_.clear();
  for (int round = 0; round < 3; ++round) {
    for (int iteration = 0; iteration < 8; ++iteration) {
      if (Step() < 1e-3) break;
    }
    if (round == 2) break;
    const bool weigh_now = weigh_first && round == 0;
    if (!weigh_now) ChooseScales();
    if (std::ssize(observations_) >= kAutoResidual.least_to_weigh) WeighOutliers(round > 0);
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
  const std::vector<double> place_noise = place_noise_;
  const double probability = LogProbability();
  SettleFromPrior(true);
  if (LogProbability() > probability) return;
  parameters_ = parameters;
  scales_ = scales;
  weights_ = weights;
  place_noise_ = place_noise;
}

}  // namespace dsat
