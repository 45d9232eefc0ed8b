// A normal distribution of a few unknown factors that learns from measured sums of them, and from
// sums of which only is known whether they are above or below a limit.
#pragma once

#include <Eigen/Core>
#include <vector>

namespace dsat {

// A sum is row·x + noise, where x are the factors and the noise of each sum is independent.
//
// Measured sums update the distribution in closed form. With one-sided ones it is no longer normal:
// probabilities are those of weighted samples (importance sampling: Robert and Casella 2004, "Monte
// Carlo Statistical Methods", section 3.3), which are drawn from the normal distribution that has
// the moments of the truncated one, one sum after the other (assumed-density filtering: Minka 2001,
// "Expectation Propagation for Approximate Bayesian Inference", section 3). The moments alone would
// leave a sixth of the probability on the wrong side of a sum that is known to be above its limit.
class AutoFactors {
 public:
  static constexpr int kNum = 10;
  using Vector = Eigen::Matrix<double, kNum, 1>;
  using Matrix = Eigen::Matrix<double, kNum, kNum>;

  // Factors with variance 0 are known.
  AutoFactors(const Vector& mean, const Vector& sd, double noise_sd);

  // Takes the distribution of `other` with its standard deviations times `widen`, but none above
  // those here.
  void Inherit(const AutoFactors& other, double widen);

  void Measured(const Vector& row, double sum);
  void IsAbove(const Vector& row, double limit) { Learn({row, limit, 1}); }
  void IsBelow(const Vector& row, double limit) { Learn({row, limit, -1}); }
  // The standard deviations that the measured sums leave become so many times as large.
  void Widen(const Vector& times);

  double MeanOf(const Vector& row) const { return row.dot(mean_); }
  // It includes the noise of a sum.
  double SdOf(const Vector& row) const;
  double ProbabilityBelow(const Vector& row, double limit) const;
  // The logarithm of the probability of what was learned, beforehand.
  double log_evidence() const { return log_evidence_; }

 private:
  static constexpr int kNumSamples = 256;

  // side × (row·x + noise - limit) is positive.
  struct Side {
    Vector row;
    double limit = 0, side = 1;
  };

  void Learn(const Side& side);
  void Approximate();
  void Sample() const;

  double noise_variance_;
  // The distribution that the measured sums leave.
  Vector measured_mean_;
  Matrix measured_covariance_;
  std::vector<Side> sides_;
  // The moments that all sums leave.
  Vector mean_;
  Matrix covariance_;
  // The same in coordinates in which the measured sums leave the standard normal distribution, and
  // the matrix that leads back.
  Vector inner_mean_;
  Matrix inner_covariance_, root_;
  // Samples of the factors and of noise, with weights. They are drawn when they are needed next.
  mutable bool is_sampled_ = false;
  mutable Eigen::Matrix<double, kNumSamples, kNum> samples_;
  mutable Eigen::Array<double, kNumSamples, 1> noise_, weights_;
  double log_evidence_ = 0;
};

}  // namespace dsat
