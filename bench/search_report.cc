// Medians, shares and their rows.
#include "bench/search_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace dsat {
namespace {

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

std::string Number(double value, const char* format) {
  return value < kNever ? fmt::format(fmt::runtime(format), value) : "never";
}

}  // namespace

void ReportHead() {
  fmt::print(
      "| method | at once | machines | runs | launches | in all | to 2 % | within 40 | within 1 % "
      "| loss after 10, 20, 40 and all, % | worst, % | speed of pick / best | out of memory, % | "
      "bound, % | holds | ms per "
      "ask |\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
}

void Report(const std::string& what, const std::vector<RunResult>& runs) {
  std::vector<double> launches, in_all, to2, losses, bounds;
  double within40 = 0, within1 = 0, out_of_memory = 0, all = 0, ask_ms = 0, asks = 0, holds = 0;
  double speed = 0;
  const auto n = static_cast<double>(runs.size());
  for (const RunResult& run : runs) {
    launches.push_back(run.launches);
    in_all.push_back(run.launches + run.confirming);
    losses.push_back(run.loss());
    const Moment* reached = run.Reached(0.02);
    to2.push_back(reached ? reached->launches : kNever);
    within40 += reached && reached->launches <= 40 ? 1 / n : 0;
    within1 += run.loss() <= 0.01 ? 1 / n : 0;
    speed += 1 / (1 + run.loss()) / n;
    out_of_memory += run.out_of_memory;
    all += run.launches;
    ask_ms += run.ask_ms;
    asks += run.asks;
    if (!run.others_at_most) continue;
    bounds.push_back(*run.others_at_most - 1);
    holds += run.loss() <= bounds.back();
  }
  const auto median = [](const std::vector<double>& values, double unit = 1) {
    return Number(unit * Quantile(values, 0.5), unit > 1 ? "{:.2f}" : "{:.0f}");
  };
  const auto loss_after = [&](double num_launches) {
    std::vector<double> losses_then;
    for (const RunResult& run : runs)
      losses_then.push_back(run.LossAfter(num_launches));
    return median(losses_then, 100);
  };
  const auto num_bounds = static_cast<double>(bounds.size());
  fmt::print(
      "| {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {}, {}, {}, {} | {} | {:.3f} | {:.1f} | {} "
      "| {} | {} |\n",
      what, runs.size(), median(launches), median(in_all), median(to2), within40, within1,
      loss_after(10), loss_after(20), loss_after(40), median(losses, 100),
      Number(100 * Quantile(losses, 1), "{:.1f}"), speed, 100 * out_of_memory / all,
      bounds.empty() ? "-" : median(bounds, 100),
      bounds.empty() ? "-" : fmt::format("{:.2f}", holds / num_bounds),
      asks > 0 ? fmt::format("{:.1f}", ask_ms / asks) : "-");
  std::fflush(stdout);
}

void ReportStrata(const std::string& what, const std::vector<RunResult>& runs) {
  constexpr double kMost = 1e9;
  struct Stratum {
    const char* name;
    double RunResult::*law;
    double above, most;
  };
  for (const Stratum& stratum : {Stratum{"noise to 3 %", &RunResult::launch_noise, 0, 0.03},
                                 {"noise 3 to 10 %", &RunResult::launch_noise, 0.03, 0.1},
                                 {"noise above 10 %", &RunResult::launch_noise, 0.1, kMost},
                                 {"roughness to 1 %", &RunResult::roughness, 0, 0.01},
                                 {"roughness 1 to 2 %", &RunResult::roughness, 0.01, 0.02},
                                 {"roughness above 2 %", &RunResult::roughness, 0.02, kMost},
                                 {"**drawn**", &RunResult::roughness, 0, kMost}}) {
    std::vector<RunResult> members;
    for (const RunResult& run : runs) {
      if (run.*stratum.law > stratum.above && run.*stratum.law <= stratum.most)
        members.push_back(run);
    }
    if (!members.empty()) Report(fmt::format("{} | {}", what, stratum.name), members);
  }
}

void ReportFactors(const std::vector<RunResult>& runs) {
  double confirming = 0, nothing_better = 0, intervals = 0, right = 0;
  for (const RunResult& run : runs) {
    confirming += run.confirming / static_cast<double>(runs.size());
    nothing_better += run.nothing_better;
    if (!run.factor_holds) continue;
    ++intervals;
    right += *run.factor_holds;
  }
  fmt::print(
      "\nAfter {:.1f} launches that confirm, {} of {} factors are in their intervals; "
      "{} of {} runs found nothing better.\n",
      confirming, right, intervals, nothing_better, runs.size());
}

}  // namespace dsat
