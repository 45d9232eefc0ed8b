// Writes the history of a training.
#include "engine/worker/step_history.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {

StepHistory::StepHistory(const std::string& path, int64_t step) : path_(path) {
  if (std::filesystem::exists(path)) {
    const std::string before = ReadFile(path);
    std::string kept;
    std::istringstream lines(before);
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.value("step", Json()).is_number_integer()) continue;
      if (json["step"] > step) continue;
      has_validation_ |= json["step"] == step && json.contains("validation_loss");
      kept += line + "\n";
    }
    if (kept != before) WriteFileAtomic(path, kept);
  }
  file_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_) ThrowErrno(path, errno);
}

void StepHistory::Add(const TrainingStep& step) {
  const std::string line = ToJson(step).dump() + "\n";
  const ssize_t written = write(file_.get(), line.data(), line.size());
  if (written < 0) ThrowErrno(path_, errno);
  if (written < std::ssize(line)) ThrowErrno(path_, ENOSPC);
}

void StepHistory::Sync() {
  if (fdatasync(file_.get()) != 0) ThrowErrno(path_, errno);
}

}  // namespace dsat::engine
