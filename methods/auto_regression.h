// auto's belief about the objective: the time model, linearized at its best parameters, plus a
// Gaussian process for what the model misses.
//
// The parameters have a normal prior, so that the linearized model and the residual are one
// Gaussian process (Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", section
// 2.7). Parameters and linearization are iterated to the most probable ones (Gauss-Newton).
#pragma once

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "methods/auto_priors.h"
#include "methods/auto_time_model.h"
#include "methods/method.h"

namespace dsat {

// A configuration and the share of the device's memory that it needs.
struct AutoPoint {
  AutoConfig config;
  double memory_share = 0;
};

// One measurement.
struct AutoObservation {
  AutoPoint point;
  double log_value = 0;                  // The logarithm of the objective; smaller is better.
  double variance = 0;                   // The variance of log_value that its steps show.
  double other_variance = 0;             // The variance that comes on top.
  int64_t launch = 0;                    // Measurements of one launch share its deviation.
  int64_t same = -1;                     // The number of its configuration; -1 while it runs.
  bool earlier = false;                  // An earlier search has made it.
  int64_t earlier_place = 0;             // The index of its place in the earlier search's space.
  double ended_s = 0;                    // 0 if unknown.
  double log_left = 0;  // The log of the share of the processors' time that others left.
  std::array<double, 3> log_parts = {};  // Forward, backward and update, log(ms).
  bool has_parts = false;
};

struct AutoTraits;  // The features that the correlation of two configurations depends on.

class AutoRegression {
 public:
  using Vector = Eigen::VectorXd;
  using Matrix = Eigen::MatrixXd;

  // The relation of the measurements of an earlier search to this one.
  struct Earlier {
    AutoTimeModel model;  // The earlier search's.
    // Its parameters are ours plus a normal difference.
    AutoTimeModel::Vector shift = AutoTimeModel::Vector::Zero();
    AutoTimeModel::Vector shift_sd = AutoTimeModel::Vector::Zero();
    double correlation = 1;  // Between what the two models miss of a configuration.
  };

  explicit AutoRegression(const AutoTimeModel& model) : model_(model) {}

  // Observations of the next Fit may be of this earlier search.
  void StartFrom(const Earlier& earlier) { earlier_ = earlier; }

  // Learns from all measurements.
  void Fit(std::vector<AutoObservation> observations);

  // The prediction for a set of points: the mean of each, and the rows from which
  // covariances follow.
  struct View {
    std::vector<AutoPoint> points;
    Matrix gradients;  // A row each.
    Matrix scaled;     // `gradients` times the covariance of the parameters.
    Matrix explained;  // A column each: the covariance with what is known, whitened.
    Vector mean;
    Vector variance;
  };
  // `pending` are points whose measurements will come: they reduce variances and no mean changes.
  View Look(std::vector<AutoPoint> points, const std::vector<AutoPoint>& pending) const;
  double Covariance(const View& view, int64_t a, int64_t b) const;

  // The prediction by the model and by the knobs that it does not know, each by itself.
  double LogOf(const AutoPoint& point) const {
    return model_.Log(point.config, point.memory_share, parameters_, Part::kObjective, nullptr) +
           EffectOf(point.config);
  }
  const AutoTimeModel::Vector& parameters() const { return parameters_; }
  // The logarithm of the probability density of this search's own measurements, given those of the
  // earlier one.
  double LogEvidenceOfOwn() const;
  // How the machine has drifted during this search, by a linear trend in the logarithm of the time;
  // nullopt if that is not more than twice its error.
  std::optional<MachineDrift> Drift() const;
  // The variance of a further measurement of a configuration, in a new launch.
  double NoiseVariance(const AutoConfig& config) const;

 private:
  using Part = AutoTimeModel::Part;
  static constexpr int kNum = AutoTimeModel::kNum;

  // The evidence chooses these; the values here are the most probable ones beforehand.
  struct Scales {
    double residual = kAutoResidual.residual.mean;
    double size = kAutoResidual.size.mean;      // The roughness of sizes, equal at all places.
    double config = kAutoResidual.config.mean;  // The roughness of configurations.
    double wide = kAutoResidual.wide.mean;      // For each knob of a wide space.
    double launch = kAutoResidual.launch.mean;
    double drift = 0;                     // The standard deviation over the whole search.
    double own = kAutoResidual.own.mean;  // For each knob that the user's space has added.
  };
  // The expected effects of the values of knobs, a row for each knob and a column for each value.
  struct Effects {
    Matrix wide, own;
  };

  double LogOf(const AutoObservation& observation, Part part,
               AutoTimeModel::Vector* gradient) const;
  // The covariance of what the model misses at two configurations.
  double Missed(const AutoTraits& a, const AutoTraits& b) const;
  void LearnEffects();
  double EffectOf(const AutoConfig& config) const;
  void Compare();
  void LearnFromParts();
  void Linearize();
  double VarianceWithinLaunches() const;
  double NoiseOf(int64_t place) const;
  Matrix CovarianceWith(const Scales& scales) const;
  static std::vector<double> DriftsToTry();
  double LogEvidence(const Scales& scales) const;
  void ChooseScales();
  void WeighOutliers(bool by_place);
  void LearnPlaces(const Vector& usual, const Vector& differences, const Vector& variances);
  double Step();
  double LogProbability();
  void SettleFromPrior(bool weigh_first);
  void Settle();

  AutoTimeModel model_;
  std::optional<Earlier> earlier_;
  std::vector<AutoObservation> observations_;
  AutoTimeModel::Vector prior_ = AutoTimeModel::Vector::Zero();
  Eigen::Matrix<double, kNum, kNum> prior_covariance_;
  AutoTimeModel::Vector parameters_ = AutoTimeModel::Vector::Zero();
  Scales scales_;
  Vector noise_;  // The variance of each measurement within its launch.
  // A weight of each measurement, 1 if it is no outlier at a place of mean noise.
  Vector weights_;
  std::vector<double> place_noise_;  // The variance at each place, relative to the mean.
  Matrix gradients_;                 // A row for each measurement.
  Vector differences_;               // From the linearized model at the prior.
  // The covariances of measurements by the parameters, and by effects of scale 1.
  Matrix by_model_, by_residual_, by_size_, by_wide_, by_own_, by_launch_, by_time_, by_config_,
      by_load_;
  Eigen::LLT<Matrix> factor_{Matrix::Ones(1, 1)};  // A default-constructed one cannot be copied.
  Vector solution_;
  std::array<Effects, 4> effects_;  // By stage.
};

}  // namespace dsat
