// Writes the scalars of a training for TensorBoard and as CSV files.
#include "engine/worker/monitors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "proto/tensorboard.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

// `section` is where the ds_config has the monitor.
std::string MakeFolder(const MonitorConfig& monitor, const char* section) {
  std::string dir = fs::path(monitor.output_path) / monitor.job_name;
  if (dir.empty()) dir = ".";
  try {
    MakeWritableFolder(dir);
  } catch (const Error& error) {
    Throw(error.code(), "/{}/output_path is \"{}\": {}", section, monitor.output_path,
          error.what());
  }
  return dir;
}

// The number of samples with which a line of a CSV file begins; nullopt of its header.
std::optional<int64_t> SamplesOf(const std::string& line) {
  int64_t samples = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), samples);
  return error == std::errc() && *end == ',' ? std::optional(samples) : std::nullopt;
}

}  // namespace

Monitors::Monitors(const DsConfig& config, int64_t num_samples)
    : has_loss_scale_(config.dtype() == DType::kF16), first_samples_(num_samples) {
  if (config.csv_monitor.enabled) csv_dir_ = MakeFolder(config.csv_monitor, "csv_monitor");
  if (config.tensorboard.enabled) OpenEvents(MakeFolder(config.tensorboard, "tensorboard"));
}

void Monitors::OpenEvents(const std::string& dir) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  events_path_ =
      fmt::format("{}/events.out.tfevents.{}.dsat.{}", dir,
                  std::chrono::duration_cast<std::chrono::seconds>(now).count(), getpid());
  events_.open(events_path_, std::ios::binary | std::ios::app);
  WriteEvents(EventFileBegin(first_samples_ + 1));
}

void Monitors::WriteEvents(const std::string& records) {
  events_ << records << std::flush;
  if (!events_) ThrowErrno(events_path_, errno);
}

LineFile& Monitors::FileOf(const std::string& tag) {
  if (const auto known = csv_.find(tag); known != csv_.end()) return known->second;
  std::string name = tag;
  std::ranges::replace(name, '/', '_');
  LineFile file(csv_dir_ + "/" + name + ".csv", [this](const std::string& line) {
    return SamplesOf(line).value_or(0) <= first_samples_;
  });
  if (file.empty()) file.Add("step," + tag.substr(tag.rfind('/') + 1));
  return csv_.emplace(tag, std::move(file)).first->second;
}

void Monitors::Write(const std::string& tag, int64_t samples, double value) {
  if (!csv_dir_.empty()) FileOf(tag).Add(fmt::format("{},{}", samples, value));
  if (events_.is_open()) WriteEvents(ScalarRecord(tag, samples, value));
}

void Monitors::Add(const TrainingStep& step, int64_t num_samples) {
  if (step.validated) return Write("Validation/Samples/loss", num_samples, step.loss);
  Write("Train/Samples/train_loss", num_samples, step.loss);
  Write("Train/Samples/lr", num_samples, step.lr);
  if (has_loss_scale_) Write("Train/Samples/loss_scale", num_samples, step.loss_scale);
}

}  // namespace dsat::engine
