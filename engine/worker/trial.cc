// One rank of a built-in trial.
#include "engine/worker/trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/log.h"
#include "engine/backend/device.h"
#include "engine/backend/device_speed.h"
#include "engine/config/ds_config.h"
#include "engine/core/device_kind.h"
#include "engine/data/model_fit.h"
#include "engine/model/models.h"
#include "engine/runtime/cluster.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/initialize.h"
#include "engine/runtime/predict.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/state/tier_memory.h"
#include "engine/worker/divergence.h"
#include "engine/worker/history.h"
#include "engine/worker/inference.h"
#include "engine/worker/metrics.h"
#include "engine/worker/step_tracer.h"
#include "engine/worker/step_window.h"
#include "engine/worker/training_checkpoints.h"

namespace dsat::engine {
namespace {

constexpr int64_t kDefaultStepsPerPrint = 10;

// The seed of parameters and samples: that of the ds_config, or else that of the experiment.
int64_t SeedOf(const TrialTask& task, const DsConfig& config) {
  return task.ds_config.contains("seed") ? config.seed : task.seed;
}

// The measurement at one point.
struct PointRun {
  std::vector<StepResult> steps;  // The steps that count, as rank 0 has decided.
  int64_t num_steps = 0;          // All steps.
  std::vector<double> losses;     // The loss of each of all steps.
  int64_t num_skipped = 0;        // The skipped ones of all steps.
  int64_t peak_bytes = 0;         // The highest of any rank, from the engine's start on.
  std::vector<int64_t> rank_peak_bytes;
};

// The action of all ranks after a step. If they want different ones, the last of these.
enum class Next { kStep, kEnd, kStop };

// A step that warms up, and a few that are timed.
constexpr StepWindowOptions kProfileSteps = {.first = 1, .least = 3};

class Trial {
 public:
  Trial(const TrialTask& task, const RankEnvironment& environment, const DsConfig& config,
        Reporter& reporter)
      : task_(task),
        environment_(environment),
        reporter_(reporter),
        config_(config),
        model_(MakeModel(task.model, "/hyperparameters/model", task.base_dir)),
        seq_len_(SeqLen(task.data, model_.max_seq_len, "/hyperparameters/data")),
        device_(OpenDevice(task.device, environment.local_rank, environment.num_threads)),
        memory_(*device_, task.device_memory_bytes, task.host_memory_bytes),
        checkpoints_(task.checkpoint_dir, task.training.keep, environment.rank) {
    CheckModelFitsDevice(model_, device_->kind(), "/hyperparameters/model");
    if (task.mode != TrialTask::Mode::kGenerate) {
      const std::string what = "/hyperparameters/data", model = "/hyperparameters/model";
      data_ = OpenDataset(task.data, task.base_dir, SeedOf(task, config), what);
      validation_ = OpenValidationDataset(task.data, task.base_dir, SeedOf(task, config), what);
      CheckModelFitsData(model_, *data_, model, what);
      if (validation_) CheckModelFitsData(model_, *validation_, model, what + "/validation");
    }
    group_ = device_->MakeGroup(JoinGroup(environment));
  }

  void Run() {
    switch (task_.mode) {
      case TrialTask::Mode::kProfile:
        return Profile();
      case TrialTask::Mode::kMeasure:
        return Measure();
      case TrialTask::Mode::kSoak:
        return Soak();
      case TrialTask::Mode::kTrain:
        return Train();
      case TrialTask::Mode::kEvaluate:
        return Evaluate();
      case TrialTask::Mode::kGenerate:
        return Generate();
    }
  }

 private:
  Resources MakeResources() { return {model_, *group_, memory_.view(), data_.get(), seq_len_}; }
  uint64_t Seed() const { return static_cast<uint64_t>(SeedOf(task_, config_)); }
  // The memory that one rank may use: its budget, or its share of the device.
  int64_t DeviceMemoryBytes() const {
    return task_.device_memory_bytes > 0 ? task_.device_memory_bytes
                                         : device_->MemoryBytes(environment_.local_world_size);
  }

  void Profile() {
    const std::optional<PointRun> at_one = RunPoint({.micro_batch_size = 1}, kProfileSteps);
    if (!at_one) return;
    const PointResult result = {{.micro_batch_size = 1},
                                MeasurementOf(at_one->steps, Scale(), at_one->peak_bytes)};
    std::vector<std::vector<double>> timings = {TimingOf(1, at_one->steps)};
    int64_t two_peak_bytes = 0;  // Stays so if two samples would not fit.
    for (int64_t size = 2; size > 0; size = LargerProfileSize(timings)) {
      RenewGroup();
      if (!IsPredictedToFit({.micro_batch_size = size})) break;
      const std::optional<PointRun> run = RunPoint({.micro_batch_size = size}, kProfileSteps);
      if (!run) return;
      if (size == 2) two_peak_bytes = run->peak_bytes;
      timings.push_back(TimingOf(size, run->steps));
    }
    if (config_.pipeline.num_stages > 1) timings.clear();  // Ranks wait for each other in passes.
    // Now that all memory is free again, and on all ranks at once, as they will train.
    const DeviceSpeed speed =
        MeasureDeviceSpeed(memory_.kernels(), memory_.device(), memory_.host(), config_.dtype());
    group_->Barrier();  // No rank has a buffer any more.
    // The smallest of any rank: hosts may differ.
    const int64_t memory_bytes = -MaxOfRanks(-DeviceMemoryBytes());
    const int64_t num_threads = MaxOfRanks(environment_.num_threads);
    const double link =
        MeasureLink(*group_, memory_.kernels().stream(), config_.dtype(), NumParams(model_));
    if (environment_.rank != 0) return;
    const ModelProfile profile = {
        .num_params = NumParams(model_),
        .trainable_num_params = NumTrainableParams(model_),
        .activation_bytes_per_sample = at_one->steps[0].activation_bytes,
        // The workspace is missing in the device's rest already.
        .device_memory_bytes =
            memory_bytes - (task_.device_memory_bytes > 0 ? memory_.kernels().WorkspaceBytes() : 0),
        .forward_flops_per_sample = at_one->steps[0].forward_flops,
        .two_units_num_params = TwoUnitsNumParams(model_),
        .matmul_flops_per_s = std::llround(speed.matmul_flops),
        .copy_bytes_per_s = std::llround(speed.copy),
        .to_device_bytes_per_s = std::llround(speed.to_device),
        .to_host_bytes_per_s = std::llround(speed.to_host),
        .link_bytes_per_s = std::llround(link),
        .micro_batch_1_peak_bytes = at_one->peak_bytes,
        .micro_batch_2_peak_bytes = two_peak_bytes,
        .timings = timings,
        .device = device_->kind() == DeviceKind::kCuda ? "cuda" : "cpu",
        .num_threads = num_threads,
    };
    reporter_.Measured(result, profile);
  }

  // The size to time after 1 and 2: the largest power of 2, up to 64, whose passes take no longer
  // than 250 ms and that is predicted to fit. 0 if there is none above 2, or if it was timed.
  int64_t LargerProfileSize(const std::vector<std::vector<double>>& timings) {
    if (timings.size() != 2) return 0;
    const double sample_ms = group_->MaxScalar(timings[1][1]) / timings[1][0];
    int64_t size = 64;
    while (size > 2 && (static_cast<double>(size) * sample_ms > 250 ||
                        !IsPredictedToFit({.micro_batch_size = size})))
      size /= 2;
    return size > 2 ? size : 0;
  }

  // Whether the point leaves every rank an eighth of its memory. All ranks decide together, before
  // one starts and runs out of memory while the others wait for it.
  bool IsPredictedToFit(const Point& point) {
    SetPoint(point);
    const Prediction predicted =
        engine::Predict(model_, config_, seq_len_, environment_.rank, environment_.world_size,
                        environment_.num_threads, /*speeds=*/{}, device_->kind());
    const auto fits = [](int64_t bytes, int64_t memory_bytes) {
      return bytes <= memory_bytes - memory_bytes / 8;
    };
    const bool fits_device = fits(predicted.run_peak_bytes, DeviceMemoryBytes());
    const int64_t host = task_.host_memory_bytes;
    const bool fits_host = host == 0 || fits(predicted.run_host_peak_bytes, host);
    return group_->MaxScalar(fits_device && fits_host ? 0 : 1) == 0;
  }

  // A later point that does not fit ends the trial and loses nothing. Where one rank runs out of
  // memory and leaves, the others find that it has gone.
  void Measure() {
    std::optional<Point> point =
        Point{config_.batch.micro_batch_size, config_.batch.accumulation_steps};
    for (bool first = true; point; first = false) {
      std::optional<PointRun> run;
      try {
        if (!first) RenewGroup();
        run = RunPoint(*point, WindowAt(*point));
      } catch (const Error& e) {
        const bool ends_point =
            e.code() == ErrorCode::kResourceExhausted || e.code() == ErrorCode::kUnavailable;
        if (first || !ends_point) throw;
        Log(LogLevel::kWarn, "a further point did not run; those before it count",
            {{"micro_batch_size", point->micro_batch_size},
             {"accumulation_steps", point->accumulation_steps},
             {"reason", e.what()}});
        return;
      }
      if (!run) return;
      point = Agree(Report(*point, *run));
    }
  }

  // Trains longer than a trial that measures, and saves checkpoints, which needs memory, too.
  void Soak() {
    const Point point{config_.batch.micro_batch_size, config_.batch.accumulation_steps};
    checkpoints_.SaveOnlyIfShared(*group_);
    const std::optional<PointRun> run =
        RunPoint(point, {.first = task_.start_profile_step,
                         .least = task_.train_steps - task_.start_profile_step,
                         .fixed = true});
    if (run) Report(point, *run);
  }

  bool SavesInSoak(int64_t step) const {
    return task_.mode == TrialTask::Mode::kSoak &&
           (step == (task_.train_steps + 1) / 2 || step == task_.train_steps);
  }

  // Rank 0 reports the point, and gives the next.
  std::optional<Point> Report(const Point& point, const PointRun& run) {
    const double host_bytes = group_->MaxScalar(static_cast<double>(PeakResidentBytes()));
    if (environment_.rank != 0) return std::nullopt;
    Measurement measurement = MeasurementOf(run.steps, Scale(), run.peak_bytes);
    measurement["host_bytes"] = {.value = host_bytes, .spread = 0, .samples = 1};
    if (checkpoints_.save_ms() > 0)
      measurement["checkpoint_ms"] = {.value = checkpoints_.save_ms(), .spread = 0, .samples = 1};
    if (run.num_skipped > 0)
      measurement["skipped_steps"] = {.value = double(run.num_skipped), .spread = 0, .samples = 1};
    const Metric& throughput = measurement.at("throughput");
    Log(LogLevel::kInfo, "measured",
        {{"micro_batch_size", point.micro_batch_size},
         {"accumulation_steps", point.accumulation_steps},
         {"steps", run.num_steps},
         {"counted", throughput.samples},
         {"samples_per_s", fmt::format("{:.4g}", throughput.value)},
         {"standard_error", fmt::format("{:.2g}", StandardError(throughput))}});
    return reporter_.Measured({point, measurement, run.losses, run.rank_peak_bytes}, std::nullopt);
  }

  // Saves on the way, at the end, and when it is told to stop. Ends before its end, with the
  // reason, if it diverges.
  void Train() {
    StepTracer tracer(task_.trace);
    Engine engine(MakeResources(), config_, Seed());
    BeginTraining(engine);
    if (engine.num_steps() >= task_.train_steps) return;  // The checkpoint has it all.
    tracer.Plan(engine.num_steps(), task_.train_steps);
    DivergenceWatch divergence;
    const int64_t interval = task_.training.checkpoint_interval;
    bool is_due = false;
    for (bool last = false; !last;) {
      tracer.BeforeStep(engine);
      const StepResult step = Step(engine);
      const Next next = Agree(IsSaveLate() ? Next::kEnd : Next::kStep);  // kEnd: save.
      // Stages of a pipeline need different amounts of memory, other ranks about the same.
      const int64_t own_peak = memory_.device().peak_bytes();
      const int64_t peak = config_.pipeline.num_stages > 1 ? MaxOfRanks(own_peak) : own_peak;
      const TrainingStep record = RecordOf(step, engine.num_steps(), Scale(), peak);
      LogStep(record, engine.num_skipped_steps());
      Record(record, engine);
      last = next == Next::kStop || engine.num_steps() >= task_.train_steps;
      tracer.AfterStep(engine, *group_, last);
      checkpoints_.OnStep(step);
      divergence.OnStep(step, engine.num_steps());
      is_due |= next == Next::kEnd || (interval > 0 && engine.num_steps() % interval == 0);
      // Parameters that give no finite loss do not replace those that did.
      const bool saves = std::isfinite(step.loss) && (last || is_due);
      if (saves) Save(engine, last);
      is_due = is_due && !saves;
      if (engine.num_steps() >= task_.train_steps) CheckLastLoss(step.loss, engine.num_steps());
      if (ValidatesAfter(engine.num_steps())) Validate(engine);
    }
    const int64_t num_steps = engine.num_steps();
    if (num_steps >= task_.train_steps) CheckSkipped(engine.num_skipped_steps(), num_steps);
  }

  void Validate(Engine& engine) {
    const int64_t num_batches = task_.training.eval_batches;
    const int64_t most = num_batches == 0 ? std::numeric_limits<int64_t>::max()
                                          : num_batches * config_.batch.train_batch_size;
    const ValidationResult result = engine::Evaluate(engine, validation_.get(), seq_len_, most);
    const bool is_best = history_ && result.loss < history_->lowest_validation_loss();
    if (task_.training.keep_best && group_->MaxScalar(is_best ? 1 : 0) > 0) {
      const Reporter::LongWork saving(reporter_);
      if (history_) history_->Sync();
      checkpoints_.SaveBest(engine);
    }
    Record({.step = engine.num_steps(), .validated = true, .loss = result.loss}, engine);
  }

  void Evaluate() {
    Engine engine(MakeResources(), config_, Seed());
    engine.LoadCheckpoint(task_.checkpoint_dir, task_.checkpoint_tag);
    const ValidationResult result = engine::Evaluate(engine, validation_.get(), seq_len_);
    if (environment_.rank == 0) PrintResult(result, engine.num_steps(), task_.json);
  }

  void Generate() {
    Engine engine(MakeResources(), config_, Seed());
    engine.LoadCheckpoint(task_.checkpoint_dir, task_.checkpoint_tag);
    const auto codec = TextCodec::Open(task_.data, task_.base_dir, "/hyperparameters/data");
    engine::Generate(engine, model_, task_.generate, codec.get(), Seed(), task_.json);
  }

  StepWindowOptions WindowAt(const Point& point) {
    SetPoint(point);
    return {
        .first = task_.start_profile_step,
        .least = task_.end_profile_step - task_.start_profile_step + 1,
        .fixed = task_.fixed_window,
        .give_up_below = task_.give_up_below / static_cast<double>(config_.batch.train_batch_size)};
  }

  // Runs and measures the steps of a window. nullopt if all ranks are to stop.
  std::optional<PointRun> RunPoint(const Point& point, const StepWindowOptions& options) {
    SetPoint(point);
    memory_.device().ResetPeak();
    Engine engine(MakeResources(), config_, Seed());
    StepWindow window(options);
    PointRun run;
    for (Next next = Next::kStep; next != Next::kEnd;) {
      run.steps.push_back(Step(engine));
      if (SavesInSoak(engine.num_steps())) Save(engine, /*wait=*/true);
      const bool ends = environment_.rank == 0 && !window.Add(run.steps.back().latency_ms);
      next = Agree(ends ? Next::kEnd : Next::kStep);
      if (next == Next::kStop) return std::nullopt;
    }
    run.num_steps = engine.num_steps();
    run.num_skipped = engine.num_skipped_steps();
    for (const StepResult& step : run.steps)
      run.losses.push_back(step.loss);
    if (environment_.rank == 0)
      run.steps.erase(run.steps.begin(), run.steps.begin() + window.first());
    for (int rank = 0; rank < environment_.world_size; ++rank) {
      const int64_t mine = rank == environment_.rank ? memory_.device().peak_bytes() : 0;
      run.rank_peak_bytes.push_back(MaxOfRanks(mine));
    }
    run.peak_bytes = std::ranges::max(run.rank_peak_bytes);
    return run;
  }

  // One step and its report.
  StepResult Step(Engine& engine) {
    const StepResult step = engine.TrainBatch();
    reporter_.Progress(engine.num_steps());
    return step;
  }

  // Decided together, or one rank would wait for another for ever. A rank that was told to stop
  // stops them all.
  Next Agree(Next mine) {
    const Next wish = reporter_.stop_requested() ? Next::kStop : mine;
    return static_cast<Next>(std::lround(group_->MaxScalar(static_cast<int>(wish))));
  }

  // Between points: gives back communication memory.
  void RenewGroup() {
    group_.reset();
    group_ = device_->MakeGroup(JoinGroup(environment_));
  }

  // Rank 0's next point, on every rank.
  std::optional<Point> Agree(std::optional<Point> next) {
    const Point mine = next.value_or(Point{0, 0});
    const Point agreed = {MaxOfRanks(mine.micro_batch_size), MaxOfRanks(mine.accumulation_steps)};
    if (agreed.micro_batch_size == 0) return std::nullopt;
    return agreed;
  }

  void LogStep(const TrainingStep& step, int64_t num_skipped) const {
    const int64_t interval = config_.steps_per_print.value_or(kDefaultStepsPerPrint);
    const bool last = step.step == task_.train_steps;
    if (environment_.rank != 0 || (step.step % interval != 0 && !last)) return;
    engine::LogStep(step, num_skipped);
  }

  void Save(Engine& engine, bool wait) {
    const Reporter::LongWork saving(reporter_);
    if (history_) history_->Sync();
    checkpoints_.Save(engine, wait);
  }

  void Record(const TrainingStep& step, const Engine& engine) {
    if (history_) history_->Add(step);
    if (monitors_) monitors_->Add(step, engine.num_samples());
  }

  // Continues from the newest good checkpoint of the folder, if there is one. A validation comes
  // after the checkpoint of its step; a run that ended between the two left it to this one.
  void BeginTraining(Engine& engine) {
    if (task_.training.eval_interval > 0) CheckValidation(validation_.get(), seq_len_);
    checkpoints_.CheckNoneIsForeign();
    std::vector<std::string> warnings;
    {
      const Reporter::LongWork loading(reporter_);
      const Json record = RecordOf(task_, config_, *data_, SeedOf(task_, config_));
      warnings = checkpoints_.Continue(engine, *group_, record);
    }
    engine.set_on_work([this] { reporter_.Alive(); });
    const bool records = environment_.rank == 0 && !task_.history_path.empty();
    if (records) {
      history_.emplace(task_.history_path, engine.num_steps());
      if (!checkpoints_.HasBest()) history_->ForgetLowest();  // Nothing was kept of it.
      monitors_.emplace(config_, engine.num_samples());
    }
    if (environment_.rank == 0) reporter_.Begins(engine.num_steps(), warnings);
    const bool lacks = records && ValidatesAfter(engine.num_steps()) && !history_->has_validation();
    if (group_->MaxScalar(lacks ? 1 : 0) > 0) Validate(engine);
  }

  bool ValidatesAfter(int64_t step) const {
    const int64_t interval = task_.training.eval_interval;
    return interval > 0 && step > 0 && (step % interval == 0 || step == task_.train_steps);
  }

  // By the clock of rank 0.
  bool IsSaveLate() const {
    const std::chrono::seconds limit(task_.training.checkpoint_seconds);
    return environment_.rank == 0 && limit.count() > 0 &&
           std::chrono::steady_clock::now() - checkpoints_.saved() > limit;
  }

  int64_t MaxOfRanks(int64_t value) {
    return static_cast<int64_t>(group_->MaxScalar(static_cast<double>(value)));
  }

  void SetPoint(const Point& point) {
    config_.batch.micro_batch_size = point.micro_batch_size;
    config_.batch.accumulation_steps = point.accumulation_steps;
    config_.batch.train_batch_size = point.micro_batch_size * point.accumulation_steps *
                                     (environment_.world_size / config_.pipeline.num_stages);
  }

  StepWork Scale() const {
    return {.train_batch_size = config_.batch.train_batch_size,
            .tokens_per_sample = seq_len_ > 1 ? seq_len_ : 0,
            .peak_flops = PeakFlopsOf(device_->name(), config_.dtype())};
  }

  const TrialTask& task_;
  const RankEnvironment& environment_;
  Reporter& reporter_;
  DsConfig config_;
  Model model_;
  int64_t seq_len_;
  std::unique_ptr<Dataset> data_;        // Not for generating text.
  std::unique_ptr<Dataset> validation_;  // If the data block has one.
  std::unique_ptr<Device> device_;
  TierMemory memory_;
  std::unique_ptr<ProcessGroup> group_;
  TrainingCheckpoints checkpoints_;
  std::optional<StepHistory> history_;  // On rank 0, and
  std::optional<Monitors> monitors_;    // these.
};

}  // namespace

int RunTrial(const TrialTask& task, const RankEnvironment& environment, Reporter& reporter) {
  const auto refuse = [&reporter](const std::exception& e) {
    reporter.Infeasible(e.what());
    return kExitInfeasible;
  };
  DsConfig config;
  try {
    config = ParseOnRank(task.ds_config, "ds_config", environment.rank, environment.world_size);
  } catch (const Error& e) {
    return refuse(e);
  }
  try {
    Trial(task, environment, config, reporter).Run();
    return kExitOk;
  } catch (const Diverged& e) {
    return refuse(e);
  } catch (const OutOfMemory& e) {
    return refuse(e);
  } catch (const Error& e) {
    // A training would meet it again if it were started again, such as a label without a class.
    if (task.mode != TrialTask::Mode::kTrain || e.code() != ErrorCode::kInvalidArgument) throw;
    return refuse(e);
  }
}

}  // namespace dsat::engine
