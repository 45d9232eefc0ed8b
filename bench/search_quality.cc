// Measures how fast and how well the search methods find the best configuration, on simulated
// machines and a recorded one whose best is known (bench/search_surfaces.h); --help lists the
// options.
//
// With --families drawn, each seed draws another machine (DrawnFamily), and the rows are those of
// strata of their noise and roughness. Constants of auto may be fitted on seeds below 100,000 only.
//
// Each run is one of the product's own state machine, the confirmation included. For each method,
// family and concurrency it prints medians over the seeds. The loss is how much slower the
// recommended configuration is than the best one, without noise, at the end after --confirm rounds
// of confirmation. "Launches" are those of the search, "in all" has those that confirm besides, and
// "to 2 %" are those after which the loss stays at most 2 %; "within 40" and "within 1 %" are
// shares of the runs. "Bound" is the median of how much faster another configuration is at the
// most, as the answer says, and "holds" the share of the runs in which that is true. With a warm
// start each search of auto has the log of an earlier one as a prior: of the same model and machine
// ("same"), of a machine with other roughness and fragmentation ("other-seed"), of a model whose
// samples have three times the FLOPs ("other-model"), or of a machine that computes at a third of
// the speed but has the same links, and is wrongly said to be the same ("slower"). In a wide space
// most configurations differ in keys that change nothing here. At last it compares, for developed
// and held-out families each, the intervals of factors with the true factors.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/informed_search.h"
#include "bench/search_report.h"
#include "bench/search_surfaces.h"
#include "engine/config/batch.h"
#include "methods/methods.h"
#include "methods/warm_start.h"
#include "profiler/tuning_space.h"
#include "searcher/search/search.h"
#include "searcher/search/verdict.h"

namespace dsat {
namespace {

// One search of the product's own state machine, whose trials run on a surface.
class Simulation {
 public:
  Simulation(const Surface& surface, const ExperimentSpec& spec, bool trace = false,
             int64_t first_launch = 0)
      : surface_(surface),
        search_(spec, surface.MakeSurfacePredictor(spec)),
        first_launch_(first_launch),
        trace_(trace) {}

  // The search as a later search is told of it. REQUIRES: it has run.
  Json Earlier() const {
    EarlierSearch earlier{
        .experiment = 1, .same_machine = true, .space = *search_.space(), .trials = {}};
    for (const auto& [id, trial] : search_.trials()) {
      if (trial.kind == TrialKind::kSubmitted || trial.kind == TrialKind::kSearch)
        earlier.trials.push_back(trial);
    }
    return ToJson(earlier);
  }

  RunResult Run() {
    result_.launch_noise = surface_.family().launch_noise;
    result_.roughness =
        std::hypot(surface_.family().size_roughness, surface_.family().config_roughness);
    const ModelProfile profile = surface_.Profile();
    const SearchSpace space = search_.SpaceFor(profile);
    best_ms_ = surface_.BestSampleMs(space, search_.spec());
    search_.Tell(search_.Ask()->id, {TrialState::kSucceeded, ""}, {}, profile, space);
    while (true) {
      while (std::optional<Trial> trial = AskOne()) {
        surface_.Run(*trial, now_s_, first_launch_ + trial->id);
        running_.push_back(*std::move(trial));
      }
      if (running_.empty()) break;
      EndNext();
    }
    const Verdict verdict = VerdictOf(search_);
    if (verdict.others) result_.others_at_most = verdict.others->at_most;
    result_.nothing_better = verdict.nothing_better;
    if (verdict.factor && verdict.factor->has_interval() && !verdict.nothing_better) {
      const double truth = SampleMsOf(*search_.Submitted()) / SampleMsOf(*verdict.pick);
      result_.factor_holds = verdict.factor->low <= truth && truth <= verdict.factor->high;
    }
    return result_;
  }

 private:
  // Adds the time of a call, in which the method may have thought.
  template <typename Call>
  auto Timed(const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    auto result = call();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    result_.ask_ms += took.count();
    return result;
  }

  std::optional<Trial> AskOne() {
    ++result_.asks;
    return Timed([this] { return search_.Ask(); });
  }

  double SampleMsOf(TrialId id) const { return surface_.SampleMs(search_.BestConfigOf(id)); }

  void EndNext() {
    const auto next =
        std::ranges::min_element(running_, {}, [](const Trial& t) { return t.times.ended_s; });
    const Trial trial = *next;
    running_.erase(next);
    now_s_ = trial.times.ended_s;
    // The search looks ahead once nothing runs.
    Timed([&] {
      search_.Tell(trial.id, {trial.state, trial.reason}, trial.points, std::nullopt, std::nullopt,
                   trial.times);
      return search_.Finished();
    });
    if (RunsAgain(trial.kind)) {
      ++result_.confirming;
    } else {
      result_.launches = static_cast<double>(search_.trials().size() - running_.size());
    }
    if (trial.kind == TrialKind::kSearch && trial.state == TrialState::kInfeasible)
      ++result_.out_of_memory;
    // A confirmation counts when it is over.
    if (RunsAgain(trial.kind) && !search_.Finished() && !trace_) return;
    std::optional<TrialId> pick;
    if (RunsAgain(trial.kind)) {
      pick = VerdictOf(search_).pick;
    } else if (const auto finalists = search_.Find().finalists; !finalists.empty()) {
      pick = finalists.front();
    }
    const double loss = pick ? SampleMsOf(*pick) / best_ms_ - 1 : kNever;
    if (trace_) {
      std::string text;
      for (const auto& [pointer, value] : trial.assignment)
        text += fmt::format(" {}={}", pointer.substr(pointer.rfind('/') + 1), value.dump());
      fmt::print("{:>3} {:<9} {:<10} at {:+.2f} %, pick at {:+.2f} %:{}\n", trial.id,
                 ToString(trial.kind), ToString(trial.state),
                 100 * (surface_.SampleMs(trial.ds_config) / best_ms_ - 1), 100 * loss, text);
    }
    if (RunsAgain(trial.kind) && !search_.Finished()) return;
    result_.moments.push_back({result_.launches, loss});
  }

  const Surface& surface_;
  Search search_;
  int64_t first_launch_;  // The noise of launches is drawn by their number.
  bool trace_;
  double best_ms_ = 0;
  double now_s_ = 0;
  std::vector<Trial> running_;
  RunResult result_;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Stands for RunInformedSearch where methods are named; of drawn machines only.
constexpr char kInformed[] = "informed";

using Flags = std::map<std::string, std::string>;

struct Flag {
  std::string name, value, meaning;  // The value is the default.
};

const std::vector<Flag>& FlagTable() {
  static const std::vector<Flag> table = {
      {"--methods", "auto,asha,binary,random,grid",
       "search methods, or informed, which knows the laws of drawn machines"},
      {"--dry-run", "0", "1: scripts without pipelines have the profile of a dry run"},
      {"--families", "all", "names of families, developed, held-out, all or drawn"},
      {"--concurrency", "1,4,16", "how many trials run at once"},
      {"--seeds", "20", "searches of each method, family and concurrency"},
      {"--first-seed", "1", "the seed of the first of them"},
      {"--jobs", "1", "searches that are simulated at once"},
      {"--trials", "64", "most launches of a search, with the profiling trial"},
      {"--confirm", "9", "the most rounds of confirmation"},
      {"--space", "published", "published or wide"},
      {"--warm-start", "off", "off, same, other-seed, other-model or slower: the earlier search"},
      {"--trace", "0", "1 prints each launch"}};
  return table;
}

int PrintHelp() {
  fmt::print(
      "Compares search methods on simulated and recorded machines.\n"
      "usage: search_quality [OPTION VALUE]...\n"
      "       search_quality --serve    (for bench/search_quality_peers.py)\n\n");
  for (const Flag& flag : FlagTable())
    fmt::print("  {:<14} {} (default: {})\n", flag.name, flag.meaning, flag.value);
  return 0;
}

void CheckNames(const std::string& flag, const std::vector<std::string>& given,
                const std::vector<std::string>& names) {
  for (const std::string& name : given) {
    if (std::ranges::count(names, name) > 0) continue;
    Throw(ErrorCode::kInvalidArgument, "{} {}: expected one of {}", flag, name,
          fmt::join(names, ", "));
  }
}

void CheckNumber(const std::string& flag, const std::string& given, int64_t least, int64_t most) {
  const bool is_number = !given.empty() && given.size() < 8 &&
                         given.find_first_not_of("0123456789") == std::string::npos;
  if (is_number && std::stoll(given) >= least && std::stoll(given) <= most) return;
  Throw(ErrorCode::kInvalidArgument, "{} {}: expected a whole number from {} to {}", flag, given,
        least, most);
}

void CheckFlags(const Flags& flags) {
  std::vector<std::string> methods = {kInformed},
                           families = {"developed", "held-out", "all", "drawn"};
  for (const MethodInfo& method : Methods())
    methods.push_back(method.name);
  for (const Family& family : Families())
    families.push_back(family.name);
  CheckNames("--methods", Split(flags.at("--methods")), methods);
  CheckNames("--families", Split(flags.at("--families")), families);
  CheckNames("--space", {flags.at("--space")}, {"published", "wide"});
  CheckNames("--warm-start", {flags.at("--warm-start")},
             {"off", "same", "other-seed", "other-model", "slower"});
  CheckNames("--trace", {flags.at("--trace")}, {"0", "1"});
  CheckNames("--dry-run", {flags.at("--dry-run")}, {"0", "1"});
  for (const std::string& concurrency : Split(flags.at("--concurrency")))
    CheckNumber("--concurrency", concurrency, 1, 1000);
  CheckNumber("--seeds", flags.at("--seeds"), 1, 1'000'000);
  CheckNumber("--first-seed", flags.at("--first-seed"), 1, 1'000'000);
  CheckNumber("--jobs", flags.at("--jobs"), 1, 64);
  CheckNumber("--trials", flags.at("--trials"), 2, 1'000'000);
  CheckNumber("--confirm", flags.at("--confirm"), 0, 100);
}

bool IsChosen(const Family& family, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == "all" || name == family.name ||
           name == (family.held_out ? "held-out" : "developed");
  });
}

// Answers each line {"family", "seed", "assignment", "launch", "started_s"} with the end of that
// launch, and the line {"family", "seed"} with the space.
int Serve() {
  std::map<std::pair<std::string, uint64_t>, std::unique_ptr<Surface>> surfaces;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    const auto key =
        std::pair(request.at("family").get<std::string>(), request.at("seed").get<uint64_t>());
    if (!surfaces.contains(key)) {
      for (const Family& family : Families()) {
        if (family.name == key.first) surfaces.emplace(key, MakeSurface(family, key.second));
      }
      if (key.first == "drawn")
        surfaces.emplace(key, MakeSurface(DrawnFamily(key.second), key.second));
      if (!surfaces.contains(key))
        Throw(ErrorCode::kInvalidArgument, "family {}: no such family; --families x lists them",
              key.first);
    }
    const Surface& surface = *surfaces.at(key);
    const ExperimentSpec spec = surface.Spec("random", static_cast<int64_t>(key.second));
    Json answer;
    if (!request.contains("assignment")) {
      const auto predictor = surface.MakeSurfacePredictor(spec);
      const SearchSpace space = MakeSearchSpace(*predictor, surface.Profile(), spec);
      answer = {{"space", ToJson(space)}, {"best_ms", surface.BestSampleMs(space, spec)}};
    } else {
      Trial trial;
      trial.ds_config = engine::ConfigForTrial(
          spec.ds_config, AssignmentFromJson(request["assignment"]), spec.slots_per_trial);
      surface.Run(trial, request.at("started_s"), request.at("launch"));
      const std::optional<double> metric = MetricValue(trial, "throughput");
      answer = {
          {"throughput", metric ? Json(*metric) : Json()},
          {"sample_ms", metric ? Json(surface.SampleMs(trial.ds_config)) : Json()},
          {"need_share", surface.PeakBytes(trial.ds_config) / (surface.family().memory_gb * 1e9)},
          {"ended_s", trial.times.ended_s}};
    }
    fmt::print("{}\n", answer.dump());
    std::fflush(stdout);
  }
  return 0;
}

// The log of the search that comes before; null without one.
Json EarlierLog(const std::string& warm_start, const Family& family, int64_t seed,
                int64_t max_launches) {
  if (warm_start == "off") return nullptr;
  Family other = family;
  if (warm_start == "slower" || warm_start == "other-model") {
    other.sample_ms *= 3;
    other.micro_batch_ms *= 3;
  }
  if (warm_start == "slower") other.matmul_flops_per_s /= 3;
  const auto surface =
      MakeSurface(other, static_cast<uint64_t>(warm_start == "other-seed" ? 1000 + seed : seed));
  ExperimentSpec spec = surface->Spec("auto", seed);
  spec.options.max_trials = max_launches;
  spec.options.max_concurrent_trials = 1;
  Simulation earlier(*surface, spec, false, 1000);
  earlier.Run();
  return earlier.Earlier();
}

RunResult RunInformed(const Family& family, int64_t seed, int64_t launches) {
  const SimulatedSurface surface(family, static_cast<uint64_t>(seed));
  const ExperimentSpec spec = surface.Spec("auto", seed);
  const auto predictor = surface.MakeSurfacePredictor(spec);
  const SearchSpace space = MakeSearchSpace(*predictor, surface.Profile(), spec);
  return RunInformedSearch(surface, spec, space, launches, static_cast<uint64_t>(seed));
}

// One search of this method on the machine of a seed.
RunResult RunOne(const Flags& flags, const std::string& method, const std::string& concurrency,
                 Family family, int64_t seed) {
  family.space = flags.at("--space");
  family.runs_dry = flags.at("--dry-run") == "1" && !family.exact && family.pipeline == 1;
  if (method == kInformed) return RunInformed(family, seed, std::stoll(flags.at("--trials")));
  const auto surface = MakeSurface(family, static_cast<uint64_t>(seed));
  ExperimentSpec spec = surface->Spec(method, seed);
  spec.options.max_trials = std::stoll(flags.at("--trials"));
  spec.options.max_concurrent_trials = std::stoll(concurrency);
  spec.options.confirm_rounds = std::stoll(flags.at("--confirm"));
  spec.options.auto_method.prior =
      EarlierLog(flags.at("--warm-start"), family, seed, spec.options.max_trials);
  return Simulation(*surface, spec, flags.at("--trace") == "1").Run();
}

// All seeds; `family_of` makes the machine of one.
std::vector<RunResult> RunAll(const Flags& flags, const std::string& method,
                              const std::string& concurrency,
                              const std::function<Family(uint64_t)>& family_of) {
  const int64_t first = std::stoll(flags.at("--first-seed"));
  std::vector<RunResult> runs(std::stoul(flags.at("--seeds")));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < runs.size(); i = next++) {
      const int64_t seed = first + static_cast<int64_t>(i);
      runs[i] = RunOne(flags, method, concurrency, family_of(static_cast<uint64_t>(seed)), seed);
    }
  };
  std::vector<std::future<void>> workers;
  for (int64_t i = 0; i < std::stoll(flags.at("--jobs")); ++i)
    workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers)
    worker.get();
  return runs;
}

void Compare(const Flags& flags, const std::string& method, const std::string& concurrency) {
  const std::string what = fmt::format("{} | {}", method, concurrency);
  const std::vector<std::string> chosen = Split(flags.at("--families"));
  std::map<bool, std::vector<RunResult>> all;
  for (const Family& family : Families()) {
    if (!IsChosen(family, chosen)) continue;
    const auto runs = RunAll(flags, method, concurrency, [&](uint64_t) { return family; });
    Report(fmt::format("{} | {}", what, family.name), runs);
    all[family.held_out].insert(all[family.held_out].end(), runs.begin(), runs.end());
  }
  for (const auto& [held_out, runs] : all)
    Report(fmt::format("{} | **{}**", what, held_out ? "held out" : "developed"), runs);
  if (std::ranges::count(chosen, "drawn") > 0 && method == kInformed) {
    ReportStrata(what, RunAll(flags, method, concurrency, DrawnFamily));
  } else if (std::ranges::count(chosen, "drawn") > 0) {
    all[true] = RunAll(flags, method, concurrency, DrawnFamily);
    ReportStrata(what, all[true]);
  }
  for (const auto& [held_out, runs] : all)
    ReportFactors(runs);
}

int Main(int argc, char** argv) {
  Flags flags;
  for (const Flag& flag : FlagTable())
    flags[flag.name] = flag.value;
  if (argc == 2 && std::string(argv[1]) == "--serve") return Serve();
  for (int i = 1; i < argc; i += 2) {
    if (std::string(argv[i]) == "--help") return PrintHelp();
    if (i + 1 == argc || !flags.contains(argv[i])) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: expected an option that --help lists, with a value, or only --serve", argv[i]);
    }
    flags[argv[i]] = argv[i + 1];
  }
  CheckFlags(flags);
  ReportHead();
  for (const std::string& method : Split(flags["--methods"])) {
    for (const std::string& concurrency : Split(flags["--concurrency"]))
      Compare(flags, method, concurrency);
  }
  return 0;
}

}  // namespace
}  // namespace dsat

int main(int argc, char** argv) {
  try {
    return dsat::Main(argc, argv);
  } catch (const dsat::Error& error) {
    fmt::print(stderr, "search_quality: {}\n", error.what());
    return error.code() == dsat::ErrorCode::kInvalidArgument ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "search_quality: {}\n", error.what());
    return 1;
  }
}
