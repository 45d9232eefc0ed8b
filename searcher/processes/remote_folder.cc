// The folder of an attempt on a host other than the runner's.
#include "searcher/processes/remote_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// The part of a log that is copied, from its end, and that of all logs of a host.
constexpr int64_t kLogEndBytes = 256 * 1024;
constexpr int64_t kAllLogsBytes = 4 * 1024 * 1024;

// Equal content identifies a shared folder: files name the attempt and the runner's address or
// files.
bool SeesRunnersFiles(const SuperviseOrder& order) {
  const auto is_there = [](const auto& file) {
    try {
      return ReadFile(file.first) == file.second;
    } catch (const Error&) {
      return false;
    }
  };
  return !order.files.empty() && std::all_of(order.files.begin(), order.files.end(), is_there);
}

}  // namespace

RemoteFolder::RemoteFolder(const SuperviseOrder& order)
    : runners_(order.work_dir), path_(order.work_dir) {
  if (SeesRunnersFiles(order)) return;
  for (const RankCommand& command : order.ranks) {
    if (!command.shares_folder) continue;
    Throw(ErrorCode::kFailedPrecondition,
          "{}: this host does not see the files that the search runner has written there; expected "
          "a folder that all hosts share, because of what the ranks leave in it",
          order.work_dir);
  }
  path_ = copies_.emplace().path();
  for (const auto& [name, content] : order.files) {
    const fs::path copy = Moved(name);
    fs::create_directories(copy.parent_path());
    std::ofstream file(copy, std::ios::binary);
    file << content;
    if (!file.flush()) ThrowErrno(copy.string(), errno);
  }
}

std::string RemoteFolder::Moved(const std::string& path) const {
  if (path == runners_) return path_;
  return path.starts_with(runners_ + "/") ? path_ + path.substr(runners_.size()) : path;
}

RankCommand RemoteFolder::Moved(RankCommand command) const {
  for (std::string& word : command.argv)
    word = Moved(word);
  command.log_path = Moved(command.log_path);
  command.work_dir = Moved(command.work_dir);
  return command;
}

std::map<std::string, std::string> RemoteFolder::Logs(
    const std::vector<RankCommand>& commands) const {
  std::map<std::string, std::string> logs;
  if (!copies_) return logs;
  const int64_t most = kAllLogsBytes / std::max<int64_t>(1, std::ssize(commands));
  for (const RankCommand& command : commands) {
    const std::string log = Moved(command.log_path);
    if (fs::exists(log)) logs[command.log_path] = ReadEnd(log, std::min(kLogEndBytes, most));
  }
  return logs;
}

}  // namespace dsat
