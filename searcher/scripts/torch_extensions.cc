// The folder in which PyTorch compiles extensions at run time.
#include "searcher/scripts/torch_extensions.h"

#include <dirent.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

namespace dsat {
namespace {

namespace fs = std::filesystem;

// Calls `use` with the path of each entry; the folder may vanish at any moment.
template <typename Use>
void ForEachEntry(const std::string& folder, const Use& use) {
  DIR* const dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') use(folder + "/" + entry->d_name);
  }
  closedir(dir);
}

bool IsHeldOpen(const std::string& path) {
  struct stat wanted;
  if (stat(path.c_str(), &wanted) != 0) return true;  // It has already been removed.
  bool held = false;
  ForEachEntry("/proc", [&](const std::string& process) {
    if (held || process[6] < '0' || process[6] > '9') return;
    ForEachEntry(process + "/fd", [&](const std::string& fd) {
      struct stat open_file;
      held = held || (stat(fd.c_str(), &open_file) == 0 && open_file.st_ino == wanted.st_ino &&
                      open_file.st_dev == wanted.st_dev);
    });
  });
  return held;
}

void FindLocks(const std::string& folder, std::vector<std::string>* locks) {
  ForEachEntry(folder, [&](const std::string& path) {
    struct stat entry;
    if (lstat(path.c_str(), &entry) != 0) return;
    if (S_ISDIR(entry.st_mode)) FindLocks(path, locks);
    if (S_ISREG(entry.st_mode) && fs::path(path).filename() == "lock") locks->push_back(path);
  });
}

}  // namespace

int RemoveStaleLocks(const std::string& folder) {
  std::vector<std::string> locks;
  FindLocks(folder, &locks);
  int removed = 0;
  for (const std::string& lock : locks) {
    std::error_code error;
    if (!IsHeldOpen(lock) && fs::remove(lock, error)) ++removed;
  }
  return removed;
}

}  // namespace dsat
