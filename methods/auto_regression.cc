// Gauss-Newton over the parameters, a grid over the scales, weights for outliers.
#include "methods/auto_regression.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace dsat {
namespace {

// Configurations differ by this even if nothing that is modeled differs.
constexpr double kRoughness = 0.004;
// Of measured parts: parts of a step overlap, and the model simplifies them.
constexpr double kPartSd = 0.1;

// The model need not be right where steps are slow: this share of the logarithm by which a
// measurement is slower than the best one counts as noise.
constexpr double kFarSd = 0.15;

double Log10Distance(double a, double b) {
  return std::log10(a / b);
}

// The correlation of what the model misses at two configurations.
double Correlation(const AutoConfig& a, const AutoConfig& b) {
  const double size = std::log2(a.micro_batch / b.micro_batch);
  const double reduce = Log10Distance(a.knobs.reduce_bucket, b.knobs.reduce_bucket);
  // Parameters are gathered in such buckets at stages 1 and 2.
  const auto gather_bucket = [](const AutoConfig& config) {
    return config.stage % 3 == 0 ? AutoKnobs().allgather_bucket : config.knobs.allgather_bucket;
  };
  const double gather = Log10Distance(gather_bucket(a), gather_bucket(b));
  int switches = (a.knobs.overlap != b.knobs.overlap) +
                 (a.knobs.reduce_scatter != b.knobs.reduce_scatter) +
                 (a.knobs.contiguous != b.knobs.contiguous);
  for (size_t i = 0; i < std::min(a.knobs.others.size(), b.knobs.others.size()); ++i)
    switches += a.knobs.others[i] != b.knobs.others[i];
  const double same_stage = a.stage == b.stage ? 1 : 0.4;
  const double by_size =
      std::exp(-0.5 * size * size / (1.2 * 1.2)) * (a.stage == b.stage ? 1 : 0.6);
  const double by_all = std::exp(-0.5 * (size * size / (1.5 * 1.5) + reduce * reduce / (0.8 * 0.8) +
                                         gather * gather / (1.2 * 1.2))) *
                        std::pow(0.6, switches) * same_stage;
  const double by_shape = a.micro_batch == b.micro_batch ? 1 : 0;
  return 0.5 * by_size + 0.4 * by_all + 0.1 * by_shape;
}

}  // namespace

void AutoRegression::LearnFromParts() {
  const AutoTimeModel::Vector sd = model_.prior_sd();
  prior_ = parameters_ = model_.prior_mean();
  prior_covariance_ = sd.cwiseAbs2().asDiagonal();
  // The unit of the objective is unknown: the scale starts where the measurements are.
  double scale = 0, parts_scale = 0;
  size_t num_parts = 0;
  constexpr std::array<Part, 3> kParts = {Part::kForward, Part::kBackward, Part::kUpdate};
  const auto log_of = [&](const AutoObservation& o, Part part, AutoTimeModel::Vector* gradient) {
    return model_.Log(o.point.config, o.point.memory_share, parameters_, part, gradient);
  };
  for (const AutoObservation& o : observations_) {
    scale += (o.log_value - log_of(o, Part::kObjective, nullptr)) /
             static_cast<double>(observations_.size());
    if (!o.has_parts) continue;
    parts_scale += o.log_parts[1] - log_of(o, Part::kBackward, nullptr);
    ++num_parts;
  }
  prior_[AutoTimeModel::kScale] = scale;
  if (num_parts > 0)
    prior_[AutoTimeModel::kPartsScale] = parts_scale / static_cast<double>(num_parts);
  parameters_ = prior_;
  if (num_parts == 0) return;
  // The errors of the parts of many configurations are not independent.
  const double precision =
      1 / (kPartSd * kPartSd * std::max(static_cast<double>(num_parts) / 3, 1.0));
  const Eigen::Matrix<double, kNum, kNum> start = sd.cwiseAbs2().cwiseInverse().asDiagonal();
  for (int iteration = 0; iteration < 6; ++iteration) {
    Eigen::Matrix<double, kNum, kNum> information = start;
    AutoTimeModel::Vector pull = start * (prior_ - parameters_);
    for (const AutoObservation& o : observations_) {
      for (size_t i = 0; o.has_parts && i < kParts.size(); ++i) {
        AutoTimeModel::Vector gradient;
        const double log = log_of(o, kParts[i], &gradient);
        // A model that is far off is not followed at once.
        const double error = std::clamp(o.log_parts[i] - log, -1.0, 1.0);
        information += precision * gradient * gradient.transpose();
        pull += precision * gradient * error;
      }
    }
    const Eigen::LLT<Eigen::Matrix<double, kNum, kNum>> factor(information);
    parameters_ += factor.solve(pull).cwiseMax(-1).cwiseMin(1);
    prior_covariance_ = factor.solve(Eigen::Matrix<double, kNum, kNum>::Identity());
  }
  prior_ = parameters_;
}

void AutoRegression::Linearize() {
  const auto n = static_cast<Eigen::Index>(observations_.size());
  gradients_.resize(n, kNum);
  differences_.resize(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const AutoObservation& o = observations_[static_cast<size_t>(i)];
    AutoTimeModel::Vector gradient;
    const double log =
        model_.Log(o.point.config, o.point.memory_share, parameters_, Part::kObjective, &gradient);
    gradients_.row(i) = gradient.transpose();
    differences_[i] = o.log_value - log + gradient.dot(parameters_ - prior_);
  }
  by_model_ = gradients_ * prior_covariance_ * gradients_.transpose();
}

AutoRegression::Matrix AutoRegression::CovarianceWith(const Scales& scales) const {
  Matrix all = by_model_ + scales.residual * scales.residual * by_residual_;
  double last_s = 0;
  for (const AutoObservation& o : observations_)
    last_s = std::max(last_s, o.ended_s);
  const auto n = static_cast<Eigen::Index>(observations_.size());
  for (Eigen::Index i = 0; i < n; ++i) {
    const AutoObservation& a = observations_[static_cast<size_t>(i)];
    all(i, i) += (a.variance + kFarSd * kFarSd * slower_[i] * slower_[i]) / weights_[i] + 1e-9;
    for (Eigen::Index j = 0; j < n; ++j) {
      const AutoObservation& b = observations_[static_cast<size_t>(j)];
      if (a.launch == b.launch)
        all(i, j) += scales.launch * scales.launch / std::sqrt(weights_[i] * weights_[j]);
      if (a.point.config == b.point.config) all(i, j) += kRoughness * kRoughness;
      // A random walk.
      if (last_s > 0)
        all(i, j) += scales.drift * scales.drift * std::min(a.ended_s, b.ended_s) / last_s;
    }
  }
  return all;
}

double AutoRegression::LogEvidence(const Scales& scales) const {
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales));
  const double fit = differences_.dot(factor.solve(differences_));
  const double determinant = 2 * factor.matrixLLT().diagonal().array().log().sum();
  const auto squared = [](double x) { return x * x; };
  const double prior = squared(std::log(scales.residual / 0.025) / 0.8) +
                       squared(std::log(scales.launch / 0.012) / 0.7) + (scales.drift > 0 ? 2 : 0);
  return -0.5 * (fit + determinant + prior);
}

void AutoRegression::ChooseScales() {
  double best = -INFINITY;
  const bool has_times = std::any_of(observations_.begin(), observations_.end(),
                                     [](const auto& o) { return o.ended_s > 0; });
  for (const double residual : {0.006, 0.012, 0.025, 0.05, 0.1, 0.2}) {
    for (const double launch : {0.004, 0.008, 0.015, 0.03, 0.06}) {
      for (const double drift : {0.0, 0.02, 0.06}) {
        if (drift > 0 && (!has_times || observations_.size() < 6)) continue;
        const Scales scales{residual, launch, drift};
        const double evidence = LogEvidence(scales);
        if (!(evidence > best)) continue;
        best = evidence;
        scales_ = scales;
      }
    }
  }
}

// Student's t with 4 degrees of freedom as a mixture of normals: a measurement far from what all
// others say of it counts less.
void AutoRegression::WeighOutliers() {
  const auto n = static_cast<Eigen::Index>(observations_.size());
  const Eigen::LLT<Matrix> factor(CovarianceWith(scales_));
  const Matrix inverse = factor.solve(Matrix::Identity(n, n));
  const Vector solution = factor.solve(differences_);
  for (Eigen::Index i = 0; i < n; ++i) {
    const double z = solution[i] / std::sqrt(inverse(i, i));
    weights_[i] = std::abs(z) < 2.5 ? 1 : 5 / (4 + z * z * z * z / 6);
  }
}

// One step towards the most probable parameters; returns its size.
double AutoRegression::Step() {
  Linearize();
  factor_.compute(CovarianceWith(scales_));
  solution_ = factor_.solve(differences_);
  const AutoTimeModel::Vector target =
      prior_ + prior_covariance_ * gradients_.transpose() * solution_;
  const AutoTimeModel::Vector step = (target - parameters_).cwiseMax(-0.7).cwiseMin(0.7);
  parameters_ += step;
  return step.cwiseAbs().maxCoeff();
}

void AutoRegression::Fit(std::vector<AutoObservation> observations) {
  observations_ = std::move(observations);
  const auto n = static_cast<Eigen::Index>(observations_.size());
  weights_ = Vector::Ones(n);
  slower_.resize(n);
  for (Eigen::Index i = 0; i < n; ++i)
    slower_[i] = observations_[static_cast<size_t>(i)].log_value;
  if (n > 0) slower_.array() -= slower_.minCoeff();
  scales_ = {};
  by_residual_.resize(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j < n; ++j)
      by_residual_(i, j) = Correlation(observations_[static_cast<size_t>(i)].point.config,
                                       observations_[static_cast<size_t>(j)].point.config);
  }
  LearnFromParts();
  if (n == 0) return;
  for (int round = 0; round < 3; ++round) {
    for (int iteration = 0; iteration < 8; ++iteration) {
      if (Step() < 1e-3) break;
    }
    if (round == 2) break;
    ChooseScales();
    if (n >= 5) WeighOutliers();
  }
  Linearize();
  factor_.compute(CovarianceWith(scales_));
  solution_ = factor_.solve(differences_);
  if (getenv("DBG")) {
    fprintf(stderr, "n=%ld res=%.3f launch=%.3f drift=%.3f out=%ld theta:", n, scales_.residual,
            scales_.launch, scales_.drift, (weights_.array() < 1).count());
    for (int i = 0; i < kNum; i++)
      fprintf(stderr, " %.2f", parameters_[i]);
    fprintf(stderr, "\n");
  }
}

AutoRegression::View AutoRegression::Look(std::vector<AutoPoint> points,
                                          const std::vector<AutoPoint>& pending) const {
  View view;
  view.points = std::move(points);
  const auto m = static_cast<Eigen::Index>(view.points.size());
  const auto n = static_cast<Eigen::Index>(observations_.size());
  const auto all = n + static_cast<Eigen::Index>(pending.size());
  const auto known = [&](Eigen::Index i) -> const AutoPoint& {
    return i < n ? observations_[static_cast<size_t>(i)].point
                 : pending[static_cast<size_t>(i - n)];
  };
  const double residual = scales_.residual * scales_.residual;
  const double rough = kRoughness * kRoughness;
  // The covariance of what is known, with the pending measurements.
  Matrix rows(all, kNum);
  if (n > 0) rows.topRows(n) = gradients_;
  for (Eigen::Index i = n; i < all; ++i) {
    AutoTimeModel::Vector gradient;
    model_.Log(known(i).config, known(i).memory_share, parameters_, Part::kObjective, &gradient);
    rows.row(i) = gradient.transpose();
  }
  Matrix covariance = rows * prior_covariance_ * rows.transpose();
  if (n > 0) covariance.topLeftCorner(n, n) = CovarianceWith(scales_);
  const auto between = [&](const AutoConfig& a, const AutoConfig& b) {
    return residual * Correlation(a, b) + (a == b ? rough : 0);
  };
  for (Eigen::Index i = n; i < all; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      covariance(i, j) += between(known(i).config, known(j).config);
      covariance(j, i) = covariance(i, j);
    }
    covariance(i, i) += NoiseVariance();
  }
  const Eigen::LLT<Matrix> factor(covariance);
  // The points.
  view.gradients.resize(m, kNum);
  view.mean.resize(m);
  Matrix with_known(all, m);
  for (Eigen::Index i = 0; i < m; ++i) {
    const AutoPoint& point = view.points[static_cast<size_t>(i)];
    AutoTimeModel::Vector gradient;
    const double log =
        model_.Log(point.config, point.memory_share, parameters_, Part::kObjective, &gradient);
    view.gradients.row(i) = gradient.transpose();
    view.mean[i] = log - gradient.dot(parameters_ - prior_);
    for (Eigen::Index j = 0; j < all; ++j)
      with_known(j, i) = between(point.config, known(j).config);
  }
  view.scaled = view.gradients * prior_covariance_;
  with_known += rows * view.scaled.transpose();
  if (n > 0) view.mean += with_known.topRows(n).transpose() * solution_;
  view.explained = all > 0 ? Matrix(factor.matrixL().solve(with_known)) : Matrix(0, m);
  view.variance =
      (view.scaled.cwiseProduct(view.gradients)).rowwise().sum().array() + residual + rough;
  view.variance -= view.explained.colwise().squaredNorm().transpose();
  view.variance = view.variance.cwiseMax(1e-10);
  return view;
}

double AutoRegression::Covariance(const View& view, Eigen::Index a, Eigen::Index b) const {
  if (a == b) return view.variance[a];
  const AutoConfig& one = view.points[static_cast<size_t>(a)].config;
  const AutoConfig& other = view.points[static_cast<size_t>(b)].config;
  return view.scaled.row(a).dot(view.gradients.row(b)) +
         scales_.residual * scales_.residual * Correlation(one, other) +
         (one == other ? kRoughness * kRoughness : 0) -
         view.explained.col(a).dot(view.explained.col(b));
}

double AutoRegression::NoiseVariance() const {
  double within = 0;
  for (const AutoObservation& o : observations_)
    within += o.variance / static_cast<double>(observations_.size());
  return scales_.launch * scales_.launch + within + 1e-6;
}

}  // namespace dsat
