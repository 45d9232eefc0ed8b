// Conjugate and one-sided updates.
#include "methods/auto_factors.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "methods/auto_normal.h"
#include "methods/auto_priors.h"

namespace dsat {

AutoFactors::AutoFactors(const Vector& mean, const Vector& sd, double noise_sd)
    : noise_variance_(noise_sd * noise_sd),
      measured_mean_(mean),
      measured_covariance_(sd.cwiseAbs2().asDiagonal()),
      mean_(measured_mean_),
      covariance_(measured_covariance_) {}

void AutoFactors::Inherit(const AutoFactors& other, double widen) {
  const Matrix before = covariance_;
  mean_ = other.mean_;
  covariance_ = widen * widen * other.covariance_;
  for (int i = 0; i < kNum; ++i) {
    const double shrink = std::sqrt(std::min(1.0, before(i, i) / (covariance_(i, i) + 1e-18)));
    covariance_.row(i) *= shrink;
    covariance_.col(i) *= shrink;
  }
  measured_mean_ = mean_;
  measured_covariance_ = covariance_;
}

double AutoFactors::SdOf(const Vector& row) const {
  return std::sqrt(row.dot(covariance_.lazyProduct(row)) + noise_variance_);
}

void AutoFactors::Measured(const Vector& row, double sum) {
  const double sd = SdOf(row), z = (sum - MeanOf(row)) / sd;
  log_evidence_ += -0.5 * z * z - std::log(sd);
  const Vector gain = measured_covariance_ * row;
  const double variance = row.dot(gain) + noise_variance_;
  measured_mean_ += gain * ((sum - row.dot(measured_mean_)) / variance);
  measured_covariance_ -= gain * gain.transpose() / variance;
  Approximate();
}

void AutoFactors::Learn(const Side& side) {
  const double z = side.side * (MeanOf(side.row) - side.limit) / SdOf(side.row);
  log_evidence_ += std::log(std::max(NormalCdf(z), 1e-30));
  sides_.push_back(side);
  Approximate();
}

void AutoFactors::Widen(const Vector& times) {
  measured_covariance_ = times.asDiagonal() * measured_covariance_ * times.asDiagonal();
  Approximate();
}

void AutoFactors::Approximate() {
  const Eigen::SelfAdjointEigenSolver<Matrix> eigen(measured_covariance_);
  const Vector scales = eigen.eigenvalues().cwiseMax(0).cwiseSqrt();
  root_ = eigen.eigenvectors() * scales.asDiagonal();
  inner_mean_.setZero();
  inner_covariance_.setIdentity();
  for (const Side& s : sides_) {
    const Vector row = root_.transpose() * s.row;
    const Vector gain = inner_covariance_ * row;
    const double sd = std::sqrt(row.dot(gain) + noise_variance_);
    const double z = s.side * (row.dot(inner_mean_) + s.row.dot(measured_mean_) - s.limit) / sd;
    const double hazard = NormalHazard(z);
    inner_mean_ += gain * (s.side * hazard / sd);
    inner_covariance_ -= gain * gain.transpose() * (hazard * (hazard + z) / (sd * sd));
  }
  mean_ = measured_mean_ + root_ * inner_mean_;
  covariance_ = root_ * inner_covariance_ * root_.transpose();
  is_sampled_ = false;
}

void AutoFactors::Sample() const {
  const Eigen::LLT<Matrix> factor(inner_covariance_);
  const Matrix lower = kAutoMemory.proposal_width * Matrix(factor.matrixL());
  const double noise_sd = std::sqrt(noise_variance_);
  Rng rng(0, 0, "belief");  // The same draws each time, so that they do not change decisions.
  for (int i = 0; i < kNumSamples; ++i) {
    Vector normal;
    for (double& x : normal)
      x = rng.Normal();
    noise_[i] = noise_sd * rng.Normal();
    const Vector drawn = inner_mean_ + lower * normal;
    const Vector factors = measured_mean_ + root_ * drawn;
    samples_.row(i) = factors;
    double log_weight = 0.5 * (normal.squaredNorm() - drawn.squaredNorm());
    for (const Side& s : sides_) {
      const double z = s.side * (s.row.dot(factors) - s.limit) / noise_sd;
      if (z < 9) log_weight += std::log(std::max(NormalCdf(z), 1e-300));  // It is 0 beyond.
    }
    weights_[i] = log_weight;
  }
  weights_ = (weights_ - weights_.maxCoeff()).exp();
  weights_ /= weights_.sum();
  is_sampled_ = true;
}

double AutoFactors::ProbabilityBelow(const Vector& row, double limit) const {
  const double z = (limit - MeanOf(row)) / SdOf(row);
  if (sides_.empty() || std::abs(z) > kAutoMemory.certain) return NormalCdf(z);
  if (!is_sampled_) Sample();
  const Eigen::Array<double, kNumSamples, 1> weights =
      ((samples_ * row).array() + noise_ < limit).select(weights_, 0);
  return weights.sum();  // In a statement of its own it is vectorized.
}

}  // namespace dsat
