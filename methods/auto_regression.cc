// Gauss-Newton over the parameters, and what follows for other configurations.
#include "methods/auto_regression.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dsat {

// The features of a configuration that correlations depend on.
struct AutoTraits {
  explicit AutoTraits(const AutoConfig& c)
      : config(&c),
        log_size(std::log2(c.micro_batch)),
        log_reduce(std::log10(c.knobs.reduce_bucket)),
        // Parameters are gathered in such buckets at stages 1 and 2.
        log_gather(c.stage % 3 == 0 ? 0 : std::log10(c.knobs.allgather_bucket)) {}
  const AutoConfig* config;
  double log_size, log_reduce, log_gather;
};

namespace {

// The correlation of what the model misses at two configurations.
double Correlation(const AutoTraits& x, const AutoTraits& y) {
  const AutoConfig &a = *x.config, &b = *y.config;
  const double size = (x.log_size - y.log_size) * (x.log_size - y.log_size);
  const double reduce = x.log_reduce - y.log_reduce, gather = x.log_gather - y.log_gather;
  int switches = (a.knobs.overlap != b.knobs.overlap) +
                 (a.knobs.reduce_scatter != b.knobs.reduce_scatter) +
                 (a.knobs.contiguous != b.knobs.contiguous);
  for (int64_t i = 0; i < std::min(std::ssize(a.knobs.others), std::ssize(b.knobs.others)); ++i)
    switches += a.knobs.others[i] != b.knobs.others[i];
  const int unlike = a.stage != b.stage ? 2 : a.settings != b.settings ? 1 : 0;
  double by_all = kAutoResidual.by_all[unlike];
  for (; switches > 0; --switches)
    by_all *= kAutoResidual.switched;
  by_all *=
      std::exp(-kAutoResidual.size_in_all * size - kAutoResidual.reduce_bucket * reduce * reduce -
               kAutoResidual.allgather_bucket * gather * gather);
  const double by_size = kAutoResidual.by_size[unlike] * std::exp(-kAutoResidual.size_alone * size);
  return by_size + by_all;
}

// How many knobs have the same value in both; a negative one is that of a knob without effect.
int NumShared(const std::vector<int>& a, const std::vector<int>& b) {
  int shared = 0;
  for (int64_t i = 0; i < std::min(std::ssize(a), std::ssize(b)); ++i)
    shared += a[i] >= 0 && a[i] == b[i] ? 1 : 0;
  return shared;
}

// The knobs of a wide space that two configurations share: each value has an effect of its own, and
// so have all values together.
double SharedKnobs(const AutoConfig& a, const AutoConfig& b) {
  int shared = NumShared(a.knobs.wide, b.knobs.wide);
  if (shared > 0 && a.knobs.wide == b.knobs.wide && a.IsLike(b)) ++shared;
  return shared * (a.stage == b.stage ? 1 : kAutoResidual.other_stage);
}

// The knobs that the user's space has added and two configurations share.
double SharedOwn(const AutoConfig& a, const AutoConfig& b) {
  const int shared = NumShared(a.knobs.others, b.knobs.others);
  return shared * (a.stage == b.stage ? 1 : kAutoResidual.other_stage);
}

void AddEffect(const std::vector<int>& values, double effect, Eigen::MatrixXd& effects) {
  const auto rows = std::max(effects.rows(), std::ssize(values));
  for (int64_t knob = 0; knob < std::ssize(values); ++knob) {
    if (values[knob] < 0) continue;
    const auto cols = std::max<int64_t>(effects.cols(), values[knob] + 1);
    effects.conservativeResizeLike(Eigen::MatrixXd::Zero(rows, cols));
    effects(knob, values[knob]) += effect;
  }
}

double SumOf(const std::vector<int>& values, const Eigen::MatrixXd& effects) {
  double sum = 0;
  for (int64_t knob = 0; knob < std::ssize(values); ++knob) {
    if (values[knob] >= 0 && knob < effects.rows() && values[knob] < effects.cols())
      sum += effects(knob, values[knob]);
  }
  return sum;
}

}  // namespace

double AutoRegression::LogOf(const AutoObservation& o, Part part,
                             AutoTimeModel::Vector* gradient) const {
  const auto& [config, memory_share] = o.point;
  if (!o.earlier) return model_.Log(config, memory_share, parameters_, part, gradient);
  AutoConfig theirs = config;
  theirs.place = o.earlier_place;
  return earlier_->model.Log(theirs, memory_share, parameters_ + earlier_->shift, part, gradient);
}

void AutoRegression::LearnFromParts() {
  const AutoTimeModel::Vector sd = model_.prior_sd();
  prior_ = parameters_ = model_.prior_mean();
  prior_covariance_ = sd.cwiseAbs2().asDiagonal();
  // The unit of the objective is unknown: the scale starts where the measurements are.
  double scale = 0, num_scale = 0, parts_scale = 0, num_parts = 0;
  const bool has_own = std::ranges::any_of(observations_, [](const auto& o) { return !o.earlier; });
  constexpr std::array<Part, 3> kParts = {Part::kForward, Part::kBackward, Part::kUpdate};
  for (const AutoObservation& o : observations_) {
    if (!o.earlier || !has_own) {
      scale += o.log_value - LogOf(o, Part::kObjective, nullptr);
      ++num_scale;
    }
    if (!o.has_parts) continue;
    parts_scale += o.log_parts[1] - LogOf(o, Part::kBackward, nullptr);
    ++num_parts;
  }
  prior_[AutoTimeModel::kScale] = num_scale > 0 ? scale / num_scale : 0;
  if (num_parts > 0) prior_[AutoTimeModel::kPartsScale] = parts_scale / num_parts;
  parameters_ = prior_;
  if (num_parts == 0) return;
  // The errors of the parts of many configurations are not independent.
  const double precision =
      1 / (kAutoResidual.part_sd * kAutoResidual.part_sd * std::max(num_parts / 3, 1.0));
  const Eigen::Matrix<double, kNum, kNum> start = sd.cwiseAbs2().cwiseInverse().asDiagonal();
  for (int iteration = 0; iteration < 6; ++iteration) {
    Eigen::Matrix<double, kNum, kNum> information = start;
    AutoTimeModel::Vector pull = start * (prior_ - parameters_);
    for (const AutoObservation& o : observations_) {
      for (int64_t i = 0; o.has_parts && i < std::ssize(kParts); ++i) {
        AutoTimeModel::Vector gradient;
        const double log = LogOf(o, kParts[i], &gradient);
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
  const int64_t n = std::ssize(observations_);
  gradients_.resize(n, kNum);
  differences_.resize(n);
  for (int64_t i = 0; i < n; ++i) {
    const AutoObservation& o = observations_[i];
    AutoTimeModel::Vector gradient;
    const double log = LogOf(o, Part::kObjective, &gradient);
    gradients_.row(i) = gradient.transpose();
    differences_[i] = o.log_value - log + gradient.dot(parameters_ - prior_);
  }
  by_model_ = gradients_ * prior_covariance_ * gradients_.transpose();
  if (!earlier_) return;
  Matrix shifted = gradients_ * earlier_->shift_sd.asDiagonal();
  for (int64_t i = 0; i < n; ++i) {
    if (!observations_[i].earlier) shifted.row(i).setZero();
  }
  by_model_ += shifted * shifted.transpose();
}

double AutoRegression::Missed(const AutoTraits& a, const AutoTraits& b) const {
  return scales_.residual * scales_.residual * Correlation(a, b) +
         scales_.wide * scales_.wide * SharedKnobs(*a.config, *b.config) +
         scales_.own * scales_.own * SharedOwn(*a.config, *b.config) +
         (a.config->micro_batch == b.config->micro_batch ? scales_.size * scales_.size : 0) +
         (a.config->IsLike(*b.config) ? scales_.config * scales_.config : 0);
}

AutoRegression::Matrix AutoRegression::CovarianceWith(const Scales& scales) const {
  const Vector deviation = scales.launch * weights_.cwiseSqrt().cwiseInverse();
  Matrix all = by_model_ + scales.residual * scales.residual * by_residual_ +
               scales.size * scales.size * by_size_ + scales.config * scales.config * by_config_ +
               scales.wide * scales.wide * by_wide_ + scales.own * scales.own * by_own_ +
               scales.drift * scales.drift * by_time_ + by_load_;
  all += deviation.asDiagonal() * by_launch_ * deviation.asDiagonal();
  all.diagonal() += noise_.cwiseQuotient(weights_);
  return all;
}

// Computes the parts of the covariance of measurements, besides the linearized model.
void AutoRegression::Compare() {
  const int64_t n = std::ssize(observations_);
  weights_ = noise_ = Vector::Ones(n);
  place_noise_.clear();
  by_residual_ = by_size_ = by_wide_ = by_own_ = Matrix::Zero(n, n);
  by_launch_ = by_config_ = by_time_ = by_load_ = Matrix::Zero(n, n);
  double last_s = 1e-9;
  std::array<double, 2> best = {INFINITY, INFINITY};  // In this search, and in the earlier one.
  std::vector<AutoTraits> traits;
  for (const AutoObservation& o : observations_) {
    last_s = std::max(last_s, o.ended_s);
    best[o.earlier] = std::min(best[o.earlier], o.log_value);
    traits.emplace_back(o.point.config);
  }
  const double usual = VarianceWithinLaunches();
  for (int64_t i = 0; i < n; ++i) {
    const AutoObservation& a = observations_[i];
    const double far = kAutoResidual.far_sd * (a.log_value - best[a.earlier]);
    const double within =
        a.earlier ? a.variance
                  : kAutoResidual.own_variance * a.variance + kAutoResidual.usual_variance * usual;
    noise_[i] = within + a.other_variance + far * far + 1e-9;
    for (int64_t j = 0; j < n; ++j) {
      const AutoObservation& b = observations_[j];
      const double alike = a.earlier == b.earlier ? 1 : earlier_->correlation;
      by_residual_(i, j) = alike * Correlation(traits[i], traits[j]);
      if (a.launch == b.launch) by_launch_(i, j) = 1;
      by_wide_(i, j) = alike * SharedKnobs(a.point.config, b.point.config);
      by_own_(i, j) = alike * SharedOwn(a.point.config, b.point.config);
      if (a.point.config.micro_batch == b.point.config.micro_batch) by_size_(i, j) = alike;
      if (a.point.config.IsLike(b.point.config)) by_config_(i, j) = alike;
      by_time_(i, j) = std::min(a.ended_s, b.ended_s) / last_s;  // A random walk.
      by_load_(i, j) = kAutoResidual.load_sd * kAutoResidual.load_sd * a.log_left * b.log_left;
    }
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
  scales_ = {};
  Compare();
  LearnFromParts();
  if (observations_.empty()) return;
  Settle();
  Linearize();
  factor_.compute(CovarianceWith(scales_));
  solution_ = factor_.solve(differences_);
  LearnEffects();
}

// The expected effects, given the measurements.
void AutoRegression::LearnEffects() {
  for (int64_t stage = 0; stage < std::ssize(effects_); ++stage) {
    effects_[stage] = {};
    for (int64_t i = 0; i < std::ssize(observations_); ++i) {
      const AutoObservation& o = observations_[i];
      const double weight = (o.earlier ? earlier_->correlation : 1) *
                            (o.point.config.stage == stage ? 1 : kAutoResidual.other_stage) *
                            solution_[i];
      const AutoKnobs& knobs = o.point.config.knobs;
      AddEffect(knobs.wide, scales_.wide * scales_.wide * weight, effects_[stage].wide);
      AddEffect(knobs.others, scales_.own * scales_.own * weight, effects_[stage].own);
    }
  }
}

double AutoRegression::EffectOf(const AutoConfig& config) const {
  const Effects& effects = effects_[config.stage];
  return SumOf(config.knobs.wide, effects.wide) + SumOf(config.knobs.others, effects.own);
}

AutoRegression::View AutoRegression::Look(std::vector<AutoPoint> points,
                                          const std::vector<AutoPoint>& pending) const {
  View view;
  view.points = std::move(points);
  const int64_t m = std::ssize(view.points);
  const int64_t n = std::ssize(observations_);
  const int64_t all = n + std::ssize(pending);
  const auto known = [&](int64_t i) -> const AutoPoint& {
    return i < n ? observations_[i].point : pending[i - n];
  };
  const auto log_of = [this](const AutoPoint& point, AutoTimeModel::Vector& gradient) {
    return model_.Log(point.config, point.memory_share, parameters_, Part::kObjective, &gradient);
  };
  AutoTimeModel::Vector gradient;
  // The covariance of what is known, with the pending measurements.
  Matrix rows(all, kNum);
  if (n > 0) rows.topRows(n) = gradients_;
  for (int64_t i = n; i < all; ++i) {
    log_of(known(i), gradient);
    rows.row(i) = gradient.transpose();
  }
  Matrix covariance = rows * prior_covariance_ * rows.transpose();
  if (n > 0) covariance.topLeftCorner(n, n) = CovarianceWith(scales_);
  std::vector<AutoTraits> traits;
  for (int64_t i = 0; i < all; ++i)
    traits.emplace_back(known(i).config);
  const auto between = [&](const AutoTraits& a, int64_t known_index) {
    const AutoTraits& b = traits[known_index];
    const bool earlier = known_index < n && observations_[known_index].earlier;
    return (earlier ? earlier_->correlation : 1) * Missed(a, b);
  };
  for (int64_t i = n; i < all; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      covariance(i, j) += between(traits[i], j);
      covariance(j, i) = covariance(i, j);
    }
    covariance(i, i) += NoiseVariance(known(i).config);
  }
  const Eigen::LLT<Matrix> factor(covariance);
  // The points.
  view.gradients.resize(m, kNum);
  view.mean.resize(m);
  Matrix with_known(all, m);
  for (int64_t i = 0; i < m; ++i) {
    const AutoTraits of_point(view.points[i].config);
    const double log = log_of(view.points[i], gradient);
    view.gradients.row(i) = gradient.transpose();
    view.mean[i] = log - gradient.dot(parameters_ - prior_);
    for (int64_t j = 0; j < all; ++j)
      with_known(j, i) = between(of_point, j);
  }
  view.scaled = view.gradients * prior_covariance_;
  with_known += rows * view.scaled.transpose();
  if (n > 0) view.mean += with_known.topRows(n).transpose() * solution_;
  view.explained = Matrix::Zero(all, m);
  if (all > 0 && m > 0) view.explained = factor.matrixL().solve(with_known);
  view.variance = (view.scaled.cwiseProduct(view.gradients)).rowwise().sum();
  for (int64_t i = 0; i < m; ++i) {
    const AutoTraits of_point(view.points[i].config);
    view.variance[i] += Missed(of_point, of_point);
  }
  view.variance -= view.explained.colwise().squaredNorm().transpose();
  view.variance = view.variance.cwiseMax(1e-10);
  return view;
}

double AutoRegression::Covariance(const View& view, int64_t a, int64_t b) const {
  if (a == b) return view.variance[a];
  const AutoConfig& one = view.points[a].config;
  const AutoConfig& other = view.points[b].config;
  return view.scaled.row(a).dot(view.gradients.row(b)) +
         Missed(AutoTraits(one), AutoTraits(other)) -
         view.explained.col(a).dot(view.explained.col(b));
}

double AutoRegression::LogEvidenceOfOwn() const {
  const auto density = [](const Matrix& covariance, const Vector& values) {
    const Eigen::LLT<Matrix> factor(covariance);
    const double determinant = 2 * factor.matrixLLT().diagonal().array().log().sum();
    return -0.5 * (values.dot(factor.solve(values)) + determinant +
                   values.size() * std::log(2 * std::numbers::pi));
  };
  std::vector<int64_t> earlier;
  for (int64_t i = 0; i < std::ssize(observations_); ++i) {
    if (observations_[i].earlier) earlier.push_back(i);
  }
  const Matrix covariance = CovarianceWith(scales_);
  return density(covariance, differences_) -
         density(covariance(earlier, earlier), differences_(earlier));
}

std::optional<MachineDrift> AutoRegression::Drift() const {
  double first_s = INFINITY, last_s = 0;
  int count = 0;
  for (const AutoObservation& o : observations_) {
    if (o.ended_s <= 0) continue;
    first_s = std::min(first_s, o.ended_s);
    last_s = std::max(last_s, o.ended_s);
    ++count;
  }
  if (count < kAutoResidual.least_to_drift || !(last_s > first_s)) return std::nullopt;
  const int64_t n = std::ssize(observations_);
  Vector trend = Vector::Zero(n);
  for (int64_t i = 0; i < n; ++i) {
    const double ended_s = observations_[i].ended_s;
    if (ended_s > 0) trend[i] = (ended_s - first_s) / (last_s - first_s);
  }
  // A machine may wander besides: the trend is that of all random walks, by their evidence.
  double total = 0, mean = 0, square = 0, best = -INFINITY;
  for (const double walk : DriftsToTry()) {
    Scales scales = scales_;
    scales.drift = walk;
    const Eigen::LLT<Matrix> factor(CovarianceWith(scales));
    const double precision =
        1 / (kAutoResidual.trend_sd * kAutoResidual.trend_sd) + trend.dot(factor.solve(trend));
    const double pull = trend.dot(factor.solve(differences_)), trended = pull / precision;
    // The evidence of this walk together with the trend.
    const double evidence = LogEvidence(scales) + 0.5 * (pull * trended - std::log(precision));
    const double weight = std::exp(std::min(evidence - best, 0.0));
    const double keep = evidence > best ? std::exp(best - evidence) : 1;
    best = std::max(best, evidence);
    total = keep * total + weight;
    mean = keep * mean + weight * trended;
    square = keep * square + weight * (1 / precision + trended * trended);
  }
  mean /= total;
  const double error = std::sqrt(square / total - mean * mean);
  if (std::abs(mean) < 2 * error) return std::nullopt;
  return MachineDrift{.change = std::expm1(mean),
                      .error = std::exp(mean) * error,
                      .hours = (last_s - first_s) / 3600};
}

double AutoRegression::VarianceWithinLaunches() const {
  double sum = 0, count = 0;
  for (const AutoObservation& o : observations_) {
    if (!o.earlier) sum += o.variance, ++count;
  }
  return count > 0 ? sum / count : 0;
}

double AutoRegression::NoiseOf(int64_t place) const {
  return place < std::ssize(place_noise_) ? place_noise_[place] : 1;
}

double AutoRegression::NoiseVariance(const AutoConfig& config) const {
  return NoiseOf(config.place) * (scales_.launch * scales_.launch + VarianceWithinLaunches()) +
         1e-6;
}

}  // namespace dsat
