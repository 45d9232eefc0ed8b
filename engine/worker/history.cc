// Continues and writes the files that grow with a training.
#include "engine/worker/history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "tensorboard.pb.h"

namespace dsat::engine {
namespace {

constexpr size_t kShownBytes = 80;

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
std::optional<int64_t> SamplesOf(std::string_view line) {
  return ParseNumber<int64_t>(line.substr(0, line.find(',')));
}

// CRC-32C (RFC 3720, appendix B.4), rotated and shifted as TensorFlow's record files want it.
uint32_t MaskedCrc(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

// The bytes of an integer, the lowest first as on this machine.
template <typename T>
std::string Bytes(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The length and the event, with a checksum of each.
std::string RecordOf(tensorboard::Event event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  event.set_wall_time(std::chrono::duration<double>(now).count());
  const std::string data = event.SerializeAsString();
  const std::string length = Bytes(uint64_t{data.size()});
  return length + Bytes(MaskedCrc(length)) + data + Bytes(MaskedCrc(data));
}

// The first records of a file of TensorBoard. They make it drop the records from `first_step` on
// that earlier files of the folder have.
std::string EventFileBegin(int64_t first_step) {
  tensorboard::Event version;
  version.set_file_version("brain.Event:2");
  tensorboard::Event start;
  start.set_step(first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return RecordOf(version) + RecordOf(start);
}

// A record of a scalar now.
std::string ScalarRecord(const std::string& tag, int64_t step, double value) {
  tensorboard::Event event;
  event.set_step(step);
  tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
  scalar.set_tag(tag);
  scalar.set_simple_value(static_cast<float>(value));
  return RecordOf(event);
}

}  // namespace

LineFile::LineFile(std::string path, const std::function<bool(const std::string& line)>& keep)
    : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    const std::string before = ReadFile(path_);
    std::string kept;
    std::istringstream lines(before);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      if (keep(line)) kept += line + "\n";
    }
    if (kept != before) WriteFileAtomic(path_, kept);
    empty_ = kept.empty();
  }
  file_ = UniqueFd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_) ThrowErrno(path_, errno);
}

void LineFile::Add(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t written = write(file_.get(), text.data(), text.size());
  if (written < 0) ThrowErrno(path_, errno);
  if (written < std::ssize(text)) ThrowErrno(path_, ENOSPC);
  empty_ = false;
}

void LineFile::Sync() {
  if (fdatasync(file_.get()) != 0) ThrowErrno(path_, errno);
}

StepHistory::StepHistory(const std::string& path, int64_t step)
    : file_(path, [&](const std::string& line) { return Keep(path, line, step); }) {}

bool StepHistory::Keep(const std::string& path, const std::string& line, int64_t last_step) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;  // Damaged.
  if (!json.value("step", Json()).is_number_integer()) {
    Throw(ErrorCode::kAlreadyExists,
          "{}: it has a line that no training of dsat has written: {}; train into another folder",
          path, Printable(line.substr(0, kShownBytes)));
  }
  if (json["step"] > last_step) return false;
  if (const auto loss = json.find("validation_loss"); loss != json.end()) {
    has_validation_ |= json["step"] == last_step;
    if (loss->is_number()) NoteValidation(*loss);
  }
  return true;
}

void StepHistory::NoteValidation(double loss) {
  lowest_validation_loss_ = std::min(lowest_validation_loss_, loss);
}

void StepHistory::Add(const TrainingStep& step) {
  if (step.validated && std::isfinite(step.loss)) NoteValidation(step.loss);
  file_.Add(ToJson(step).dump());
}

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
