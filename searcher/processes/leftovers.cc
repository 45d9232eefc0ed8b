// Removes what killed ranks leave behind.
#include "searcher/processes/leftovers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/files.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// Processes, and the files that they have open, may vanish at any moment.
bool IsHeldOpen(const fs::path& path) {
  std::error_code error;
  const fs::directory_iterator end;
  for (fs::directory_iterator process("/proc", error); process != end; process.increment(error)) {
    fs::directory_iterator file(process->path() / "fd", error);
    for (; file != end; file.increment(error)) {
      if (fs::equivalent(file->path(), path, error)) return true;
    }
  }
  return false;
}

}  // namespace

int64_t RemoveSharedBuffers(int64_t port, const std::string& folder) {
  // deepspeed_allreduce_buffer_<user>_<MASTER_ADDR>_<MASTER_PORT>_<rank>, and a suffix for others.
  const std::string begin = fmt::format("deepspeed_allreduce_buffer_{}_", getuid());
  const std::string at_port = fmt::format("_{}_", port);
  int64_t bytes = 0;
  std::error_code error;  // There may be no such folder.
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(begin)) continue;
    // An address has no underscore.
    const size_t end_of_address = name.find('_', begin.size());
    if (end_of_address == std::string::npos ||
        name.compare(end_of_address, at_port.size(), at_port))
      continue;
    std::error_code failed;
    const auto size = static_cast<int64_t>(fs::file_size(entry.path(), failed));
    if (fs::remove(entry.path(), failed)) bytes += size;
  }
  return bytes;
}

std::string SharedMemoryShortage(int64_t num_ranks) {
  std::error_code error;
  const fs::space_info space = fs::space("/dev/shm", error);
  const int64_t needed = num_ranks * kSharedBufferBytes;
  if (error || static_cast<int64_t>(space.available) >= needed) return "";
  return fmt::format(
      "/dev/shm has {} free, and DeepSpeed's CPU collectives need {} there for {} ranks: ranks may "
      "end with a bus error; enlarge it (docker run --shm-size=1g), or remove old "
      "deepspeed_allreduce_buffer_* files",
      HumanBytes(static_cast<int64_t>(space.available)), HumanBytes(needed), num_ranks);
}

int RemoveStaleLocks(const std::string& folder) {
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  std::error_code error;
  int removed = 0;
  const fs::recursive_directory_iterator end;
  for (fs::recursive_directory_iterator it(folder, kOptions, error); it != end;
       it.increment(error)) {
    const bool is_lock =
        it->path().filename() == "lock" && fs::is_regular_file(it->symlink_status(error));
    if (is_lock && !IsHeldOpen(it->path()) && fs::remove(it->path(), error)) ++removed;
  }
  return removed;
}

}  // namespace dsat
