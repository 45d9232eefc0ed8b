// The working folder of trials with files from several folders.
#include "searcher/input/trial_context.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// A file in every context; a folder without it belongs to another program.
constexpr char kMarker[] = ".dsat-context";

// The absolute target by the name of the link.
using Links = std::map<std::string, fs::path>;

// Absolute, without "." and "..", and without a slash at the end.
fs::path Plain(const std::string& path) {
  const fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool LiesIn(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

Links LinksTo(const std::string& model_dir, const std::vector<std::string>& include,
              const fs::path& dir) {
  if (!fs::is_directory(model_dir))
    Throw(ErrorCode::kNotFound, "model folder {}: no such folder", model_dir);
  Links links;
  for (const auto& entry : fs::directory_iterator(Plain(model_dir))) {
    if (!LiesIn(dir, entry.path())) links[entry.path().filename()] = entry.path();
  }
  for (const std::string& path : include) {
    const fs::path target = Plain(path);
    if (!fs::exists(target)) Throw(ErrorCode::kNotFound, "--include {}: no such file", path);
    const std::string name = target.filename();
    if (name.empty()) Throw(ErrorCode::kInvalidArgument, "--include {}: it has no name", path);
    const auto [other, is_new] = links.emplace(name, target);
    if (is_new) continue;
    Throw(ErrorCode::kInvalidArgument,
          "--include {}: {} has the same name; rename one, or include the folder that it is in",
          target.string(), other->second.string());
  }
  return links;
}

bool IsLink(const fs::path& path) {
  return fs::is_symlink(fs::symlink_status(path));
}

// The entries that programs have written to a context: all except its links and its marker.
std::vector<std::string> WrittenIn(const fs::path& context) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(context)) {
    const std::string name = entry.path().filename();
    if (!IsLink(entry.path()) && name != kMarker) names.push_back(name);
  }
  return names;
}

void CheckReplaceable(const fs::path& dir, const Links& links) {
  if (IsLink(dir) || !fs::exists(dir / kMarker)) {
    Throw(ErrorCode::kFailedPrecondition,
          "{} exists and was not made by --include; move it away, or give another --out",
          dir.string());
  }
  for (const std::string& name : WrittenIn(dir)) {
    const auto found = links.find(name);
    if (found == links.end()) continue;
    Throw(ErrorCode::kFailedPrecondition,
          "{} was written by a trial, and {} belongs in its place; move one of them away",
          (dir / name).string(), found->second.string());
  }
}

fs::path Beside(const fs::path& dir, const char* what) {
  return fmt::format("{}.{}.{}", dir.string(), what, getpid());
}

}  // namespace

TrialContext::TrialContext(const std::string& dir, const std::string& model_dir,
                           const std::vector<std::string>& include)
    : dir_(Plain(dir)) {
  const Links links = LinksTo(model_dir, include, dir_);
  const bool replaces = fs::exists(fs::symlink_status(dir_));
  if (replaces) CheckReplaceable(dir_, links);
  MakeWritableFolder(dir_.parent_path());
  const fs::path made = Beside(dir_, "new");
  fs::create_directory(made);
  for (const auto& [name, target] : links)
    fs::create_symlink(target, made / name);
  std::ofstream(made / kMarker) << "dsat's; --include made it\n";
  if (replaces) {
    before_ = Beside(dir_, "old");
    fs::rename(dir_, before_);
  }
  fs::rename(made, dir_);
}

TrialContext::~TrialContext() {
  if (kept_) return;
  try {
    fs::remove_all(dir_);  // Nothing has run there yet. What links point to stays.
    if (!before_.empty()) fs::rename(before_, dir_);
  } catch (const fs::filesystem_error&) {
    // Nothing is lost: all files exist under one of the two names.
  }
}

void TrialContext::Keep() {
  kept_ = true;
  if (before_.empty()) return;
  for (const std::string& name : WrittenIn(before_))
    fs::rename(before_ / name, dir_ / name);
  fs::remove_all(before_);
}

std::string NewContextDir(const std::string& parent) {
  for (int64_t i = 1;; ++i) {
    std::string dir = fmt::format("{}/context-{}", parent, i);
    if (!fs::exists(fs::symlink_status(dir))) return dir;
  }
}

}  // namespace dsat
