// FLOPs per sample as one number of an experiment.
#include "searcher/search/sample_flops.h"

namespace dsat {
namespace {

void Scale(Metric& metric, double factor) {
  metric.value *= factor;
  metric.spread *= factor;
}

}  // namespace

std::optional<double> RankFlopsPerSample(const Measurement& measurement) {
  const auto flops = measurement.find("FLOPS_per_gpu");
  const auto throughput = measurement.find("throughput");
  if (flops == measurement.end() || throughput == measurement.end()) return std::nullopt;
  if (flops->second.value <= 0 || throughput->second.value <= 0) return std::nullopt;
  return flops->second.value / throughput->second.value;
}

Measurement WithFlopsPerSample(Measurement measurement, double rank_flops_per_sample) {
  const std::optional<double> reported = RankFlopsPerSample(measurement);
  if (!reported) return measurement;
  Metric flops = measurement.at("throughput");
  Scale(flops, rank_flops_per_sample);
  measurement["FLOPS_per_gpu"] = flops;
  if (const auto mfu = measurement.find("MFU"); mfu != measurement.end()) {
    Scale(mfu->second, rank_flops_per_sample / *reported);
  }
  return measurement;
}

}  // namespace dsat
