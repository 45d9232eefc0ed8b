// The folder in which PyTorch compiles extensions at run time.
#include "searcher/scripts/torch_extensions.h"

#include <filesystem>
#include <system_error>

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
