// The contents of a checkpoint's folder, for the code that writes, loads and converts checkpoints.
//
// <dir>/<tag>/manifest.json says what was saved and names the files that hold it, with their sizes
// and checksums; <dir>/latest holds the newest tag, and <dir>/best that of the lowest validation
// loss, if one was kept. The manifest is the commit (as LevelDB's): it appears, by one rename,
// after everything that it names is on disk. Files that it does not name are left over from an
// interrupted save, and the next save removes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/core/tensor.h"
#include "engine/files/published.h"

namespace dsat::engine {

// The file of one rank's slices.
struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

struct CheckpointManifest {
  DType dtype = DType::kF32;                               // The type of the parameters.
  std::map<std::string, std::vector<int64_t>> parameters;  // Name -> shape.
  // Only parameters that are published as such have them.
  std::map<std::string, std::vector<LinearPart>> linears;
  std::vector<CheckpointFile> files;
  Json engine = Json::object();        // The state that the engine continues from: steps taken, ...
  Json client_state = Json::object();  // The content that the caller asked to keep.
};

// The file that names the checkpoint with the lowest validation loss, and the tag that stands for
// it.
inline constexpr char kBestTag[] = "best";

// Throws kInvalidArgument if `tag` cannot be a folder of a checkpoint folder: empty, hidden,
// "latest", "best", longer than 200 bytes, with a '/' or a control character.
void CheckTag(const std::string& tag);

// The tag of a step, "global_step<N>" as DeepSpeed's, and the step of such a tag.
std::string TagOf(int64_t step);
std::optional<int64_t> StepOf(const std::string& tag);

// `tag`, or what <dir>/latest says if it is empty, and <dir>/best if it is "best". Throws
// kNotFound, or kDataLoss if it holds no tag, naming that file and the newest checkpoint of the
// folder.
std::string ResolveTag(const std::string& dir, const std::string& tag);
// The tag in <dir>/<file>, which is "latest" or "best"; "" if there is none. It may be no tag.
std::string TagIn(const std::string& dir, const std::string& file);
// The tags from which a training in `dir` can continue, the first one first: "" for what
// <dir>/latest says if there is this file, then the other ones, the newest first. If latest names a
// checkpoint, those of later steps belong to a training that was given up, and are left out.
std::vector<std::string> TagsToContinue(const std::string& dir);

// "rank_00003.safetensors"; with a number if the revision of the tag replaces another.
std::string RankFileName(int rank, int revision);
// The lowest revision of which `folder` has no file.
int FreeRevision(const std::string& folder);

// The last part of an error about a checkpoint that cannot be used begins so, and names another
// one.
inline constexpr char kAnotherOne[] = "; the newest other one is ";

// Throws kNotFound by name (a save into `folder` never ended), kInvalidArgument if the file is not
// a manifest, kDataLoss if it was altered.
CheckpointManifest ReadManifest(const std::string& folder);
// Commits; REQUIRES: the files are on disk. Throws kInvalidArgument if client_state has text that
// is not UTF-8.
void WriteManifest(const std::string& folder, const CheckpointManifest& manifest);

// Reads the whole file. Throws kNotFound, or kDataLoss if it cannot be read to its end, or naming
// both sizes or both checksums. Calls `on_read` with the number of bytes of every read.
void VerifyFile(const std::string& folder, const CheckpointFile& file,
                const std::function<void(int64_t bytes)>& on_read);

// Whether `folder` holds files but no checkpoint of ours, finished or not. DeepSpeed's tags have
// the same names.
bool IsForeign(const std::string& folder);

// Removes a checkpoint, the manifest first. Keeps files that no save has written, and their folder.
void RemoveCheckpoint(const std::string& folder);

// Removes what interrupted saves have left in `dir`: rank files that no manifest names, and tags
// that are empty then. Keeps all other files, and tags whose manifest cannot be read. REQUIRES: no
// save is under way there.
void RemoveLeftovers(const std::string& dir);

}  // namespace dsat::engine
