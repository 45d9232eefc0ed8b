// Writes and reads the manifest of a checkpoint's folder.
#include "engine/files/checkpoint_manifest.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <system_error>

#include "base/files.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/regex.h"
#include "engine/files/crc32.h"
#include "engine/files/safetensors.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepTagBegin = "global_step";
constexpr char kFormat[] = "dsat-checkpoint-2";
constexpr char kManifest[] = "manifest.json";
constexpr char kLatest[] = "latest";
constexpr size_t kMaxTagBytes = 200;  // File systems allow 255, some of them fewer.

std::string Hex(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

// The checksum of everything but itself. Objects print their keys in order, so that equal content
// has equal sums.
std::string SumOf(Json manifest) {
  manifest.erase("crc32");
  return Hex(Crc32(0, manifest.dump()));
}

// {"qkv.weight": [["q.weight", 64], ["k.weight", 16], ...]}, the outs of each.
Json LinearsToJson(const std::map<std::string, std::vector<LinearPart>>& linears) {
  Json json = Json::object();
  for (const auto& [name, parts] : linears) {
    for (const LinearPart& part : parts)
      json[name].push_back({part.name, part.outs});
  }
  return json;
}

Json FilesToJson(const std::vector<CheckpointFile>& files) {
  Json json = Json::array();
  for (const CheckpointFile& file : files)
    json.push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32", Hex(file.crc32)}});
  return json;
}

// True for the files that a save writes into a tag's folder, finished or not.
bool IsOurs(const std::string& name) {
  static const RE2 ours(R"(rank_\d{5}(\.\d+)?\.safetensors(\.tmp\..*)?|manifest\.json\.tmp\..*)",
                        RegexOptions());
  return RE2::FullMatch(name, ours);
}

// Throws unless each parameter that has linears is a matrix of their columns side by side, and no
// two published tensors share a name.
void CheckLinears(const CheckpointManifest& manifest) {
  for (const auto& [name, parts] : manifest.linears) {
    const auto found = manifest.parameters.find(name);
    const bool is_matrix = found != manifest.parameters.end() && found->second.size() == 2;
    int64_t left = is_matrix ? found->second[1] : -1;
    for (const LinearPart& part : parts)
      left = part.outs < 1 || part.outs > left ? -1 : left - part.outs;
    if (left != 0)
      Throw(ErrorCode::kDataLoss, "/linears/{} does not fit /parameters/{}", Printable(name),
            Printable(name));
  }
  std::set<std::string> names;
  for (const auto& [name, shape] : manifest.parameters) {
    const auto linears = manifest.linears.find(name);
    std::vector<LinearPart> tensors = {{name, 0}};
    if (linears != manifest.linears.end()) tensors = linears->second;
    for (const LinearPart& tensor : tensors) {
      if (!names.insert(tensor.name).second)
        Throw(ErrorCode::kDataLoss, "/linears/{} has the name {} of another tensor",
              Printable(name), Printable(tensor.name));
    }
  }
}

// Checks the engine's state before a load overwrites another one. Old checkpoints lack what may be
// missing.
void CheckEngine(const Json& engine) {
  constexpr double kMost = 1LL << 53;  // The largest count.
  constexpr double kTiny = std::numeric_limits<double>::min();
  constexpr double kHuge = std::numeric_limits<double>::max();
  struct Number {
    const char* key;
    double least, most;
    const char* expected;
    bool may_lack = false;
  };
  for (const auto& [key, least, most, expected, may_lack] : {
           Number{"/num_steps", 0, kMost, "an integer of 0 or more"},
           Number{"/num_skipped_steps", 0, kMost, "an integer of 0 or more"},
           Number{"/num_samples", 0, kMost, "an integer of 0 or more", true},
           Number{"/train_batch_size", 1, kMost, "an integer of 1 or more", true},
           Number{"/loss_scaler/scale", kTiny, kHuge, "a number above 0"},
           Number{"/loss_scaler/iteration", 0, kMost, "an integer of 0 or more"},
           Number{"/loss_scaler/last_overflow", -kMost, kMost, "an integer"},
           Number{"/loss_scaler/hysteresis", -kMost, kMost, "an integer"},
           Number{"/lr", 0, kHuge, "a number of 0 or more", true},
       }) {
    const Json::json_pointer pointer(key);
    const Json value = engine.contains(pointer) ? engine.at(pointer) : Json();
    if (value.is_null() && may_lack) continue;
    const bool is_kind = most == kMost ? value.is_number_integer() : value.is_number();
    if (is_kind && value.get<double>() >= least && value.get<double>() <= most) continue;
    Throw(ErrorCode::kDataLoss, "/engine{} is {}; expected {}", key,
          value.is_null() ? "missing" : value.dump(), expected);
  }
}

// REQUIRES: it passed CheckSum. Throws Json::exception if it is not one of ours all the same.
CheckpointManifest Parse(const Json& json) {
  CheckpointManifest manifest;
  manifest.dtype = DTypeOf(json.at("dtype")).value_or(DType::kF32);
  const Json parameters = json.at("parameters");
  for (const auto& [name, sizes] : parameters.items()) {
    const std::vector<int64_t>& shape = manifest.parameters[name] = IntegersIn(sizes);
    if (!SafetensorsFile::NumElems(shape))
      Throw(ErrorCode::kDataLoss, "/parameters/{} is {}; expected a shape", Printable(name),
            Json(shape).dump());
  }
  const Json linears = json.value("linears", Json::object());
  for (const auto& [name, parts] : linears.items()) {
    for (const Json& part : parts)
      manifest.linears[name].push_back({part.at(0), IntegerIn(part.at(1))});
  }
  CheckLinears(manifest);
  int64_t most_bytes = std::numeric_limits<int64_t>::max() / 2;  // So that twice their sum fits.
  for (const Json& file : json.at("files")) {
    if (!IsOurs(file.at("name")))
      Throw(ErrorCode::kDataLoss, "/files names {}; expected {}", file.at("name").dump(),
            RankFileName(0, 0));
    const std::string crc = file.at("crc32");
    manifest.files.push_back({file.at("name"), IntegerIn(file.at("bytes")),
                              static_cast<uint32_t>(std::stoul(crc, nullptr, 16))});
    const int64_t bytes = manifest.files.back().bytes;
    if (bytes < 0 || bytes > most_bytes)
      Throw(ErrorCode::kDataLoss, "/files has {} bytes; expected the size of a file", bytes);
    most_bytes -= bytes;
  }
  manifest.engine = json.at("engine");
  CheckEngine(manifest.engine);
  manifest.client_state = json.at("client_state");
  return manifest;
}

// The tags of the whole checkpoints in `dir` but for `other`: by step, the latest first, then those
// of other names, the one that was written last first.
std::vector<std::string> NewestFirst(const fs::path& dir, const std::string& other) {
  std::error_code error;
  std::multimap<std::pair<int64_t, fs::file_time_type>, std::string, std::greater<>> found;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string tag = entry.path().filename();
    const auto time = fs::last_write_time(entry.path() / kManifest, error);
    if (error || tag == other || tag.starts_with('.')) continue;
    found.emplace(std::pair(StepOf(tag).value_or(-1), time), tag);
  }
  std::vector<std::string> tags;
  for (const auto& [order, tag] : found)
    tags.push_back(tag);
  return tags;
}

// The end of an error about a checkpoint that cannot be used, which names the newest other one; ""
// if there is none.
std::string WayOut(const fs::path& folder) {
  const auto others = NewestFirst(folder.parent_path(), folder.filename());
  return others.empty() ? "" : fmt::format("{0}{1}: pass --tag {1}", kAnotherOne, others[0]);
}

// `file` of a folder of checkpoints should name one of them.
[[noreturn]] void ThrowNoTag(const fs::path& file) {
  const fs::path dir = fs::weakly_canonical(file).parent_path();
  if (fs::exists(dir / kManifest)) {
    Throw(ErrorCode::kNotFound, "{}: this is one checkpoint; expected {} with --tag {}",
          dir.string(), dir.parent_path().string(), dir.filename().string());
  }
  if (fs::exists(file))
    Throw(ErrorCode::kDataLoss, "{}: names no checkpoint{}", file.string(), WayOut(file));
  // A training continues from the newest one without the file.
  if (const auto tags = NewestFirst(dir, ""); !tags.empty())
    Throw(ErrorCode::kNotFound, "{}: no such file; pass --tag {}, which is the newest one",
          file.string(), tags[0]);
  Throw(ErrorCode::kNotFound,
        "{}: no such file; expected a folder of checkpoints, or the tag of one in it",
        file.string());
}

void CheckSum(const Json& json, const std::string& path) {
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    Throw(ErrorCode::kInvalidArgument, "{}: not a checkpoint; expected /format to be \"{}\"", path,
          kFormat);
  }
  const std::string sum = SumOf(json), expected = json.value("crc32", Json()).dump();
  if ('"' + sum + '"' != expected) {
    Throw(ErrorCode::kDataLoss, "{}: was altered: its content has CRC-32 {}, /crc32 says {}{}",
          path, sum, expected, WayOut(fs::path(path).parent_path()));
  }
}

void RemoveLeftoversOfTag(const fs::path& folder) {
  std::set<std::string> named;
  const bool committed = fs::exists(folder / kManifest);
  if (committed) {
    try {
      for (const CheckpointFile& file : ReadManifest(folder.string()).files)
        named.insert(file.name);
    } catch (const Error&) {
      return;  // It may name what is still there.
    }
  }
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (IsOurs(name) && !named.contains(name)) leftovers.push_back(entry.path());
  }
  std::error_code ignored;  // A file that stays harms nobody.
  for (const fs::path& leftover : leftovers)
    fs::remove(leftover, ignored);
  if (!committed && !leftovers.empty() && fs::is_empty(folder, ignored))
    fs::remove(folder, ignored);
}

}  // namespace

std::string TagOf(int64_t step) {
  return fmt::format("{}{}", kStepTagBegin, step);
}

std::optional<int64_t> StepOf(const std::string& tag) {
  if (!tag.starts_with(kStepTagBegin)) return std::nullopt;
  const auto step = ParseNumber<int64_t>(std::string_view(tag).substr(kStepTagBegin.size()));
  return step && TagOf(*step) == tag ? step : std::nullopt;
}

void CheckTag(const std::string& tag) {
  const bool control = std::any_of(tag.begin(), tag.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (tag.empty() || tag.size() > kMaxTagBytes || tag.front() == '.' || tag == kLatest ||
      tag == kBestTag || tag.find('/') != tag.npos || control) {
    Throw(ErrorCode::kInvalidArgument,
          "checkpoint tag \"{}\": expected a folder name of 1 to {} bytes without '/', which "
          "does not begin with '.' and is neither \"latest\" nor \"best\"",
          Printable(tag.substr(0, kMaxTagBytes)), kMaxTagBytes);
  }
}

std::string TagIn(const std::string& dir, const std::string& file) {
  std::string tag = ReadOrEmpty(dir + "/" + file);
  tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
  return tag;
}

std::string ResolveTag(const std::string& dir, const std::string& tag) {
  std::string name = tag;
  if (name.empty() || name == kBestTag) {
    const std::string in = name.empty() ? kLatest : kBestTag, file = dir + "/" + in;
    name = TagIn(dir, in);
    if (name.empty()) ThrowNoTag(file);
    try {
      CheckTag(name);
    } catch (const Error& e) {
      Throw(ErrorCode::kDataLoss, "{}: {}{}", file, e.what(), WayOut(file));
    }
  }
  CheckTag(name);
  return name;
}

std::vector<std::string> TagsToContinue(const std::string& dir) {
  const std::string latest = TagIn(dir, kLatest);
  std::vector<std::string> tags = NewestFirst(dir, latest);
  const std::optional<int64_t> step = StepOf(latest);
  if (step && fs::is_directory(dir + "/" + latest))
    std::erase_if(tags, [&](const std::string& tag) { return StepOf(tag) > step; });
  if (fs::exists(dir + "/" + kLatest)) tags.insert(tags.begin(), "");
  return tags;
}

std::string RankFileName(int rank, int revision) {
  return revision == 0 ? fmt::format("rank_{:05}.safetensors", rank)
                       : fmt::format("rank_{:05}.{}.safetensors", rank, revision);
}

int FreeRevision(const std::string& folder) {
  int revision = 0;
  while (fs::exists(folder + "/" + RankFileName(0, revision)))
    ++revision;
  return revision;
}

CheckpointManifest ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  if (!fs::exists(path)) {
    Throw(ErrorCode::kNotFound, "{}: no such file: {}{}", path,
          fs::exists(folder) ? "saving this checkpoint never ended" : "there is no such checkpoint",
          WayOut(folder));
  }
  Json json;
  try {
    json = ReadJsonFile(path);
  } catch (const Error& e) {
    Throw(ErrorCode::kDataLoss, "{}{}", e.what(), WayOut(folder));
  }
  CheckSum(json, path);
  try {
    return Parse(json);
  } catch (const Error& e) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole manifest: {}", path, e.what());
  } catch (const std::exception&) {  // From the JSON library, or for text that is not a number.
    Throw(ErrorCode::kDataLoss, "{}: not a whole manifest; expected one that dsat has saved", path);
  }
}

void WriteManifest(const std::string& folder, const CheckpointManifest& manifest) {
  Json json = {{"format", kFormat},
               {"dtype", SafetensorsName(manifest.dtype)},
               {"parameters", manifest.parameters},
               {"linears", LinearsToJson(manifest.linears)},
               {"files", FilesToJson(manifest.files)},
               {"engine", manifest.engine},
               {"client_state", manifest.client_state}};
  try {
    json["crc32"] = SumOf(json);
  } catch (const Json::exception& e) {
    Throw(ErrorCode::kInvalidArgument, "client_state of checkpoint {}: {}", folder, e.what());
  }
  WriteJsonFile(folder + "/" + kManifest, json);
}

void VerifyFile(const std::string& folder, const CheckpointFile& file,
                const std::function<void(int64_t bytes)>& on_read) {
  const std::string path = folder + "/" + file.name;
  if (!fs::is_regular_file(path)) {
    Throw(ErrorCode::kNotFound, "{}: no such file; {} names it{}", path, kManifest, WayOut(folder));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) ThrowErrno(path, errno);
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  if (bytes != file.bytes) {
    Throw(ErrorCode::kDataLoss, "{}: {} bytes, {} says {}: it was cut short or replaced{}", path,
          bytes, kManifest, file.bytes, WayOut(folder));
  }
  std::vector<char> block(static_cast<size_t>(std::min<int64_t>(1 << 20, bytes)));
  uint32_t crc = 0;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    crc = Crc32(crc, {block.data(), static_cast<size_t>(in.gcount())});
    on_read(in.gcount());
  }
  if (in.bad()) {
    Throw(ErrorCode::kDataLoss, "{}: cannot be read to its end: {}{}", path,
          std::generic_category().message(errno), WayOut(folder));
  }
  if (crc != file.crc32) {
    Throw(ErrorCode::kDataLoss, "{}: was altered: its content has CRC-32 {}, {} says {}{}", path,
          Hex(crc), kManifest, Hex(file.crc32), WayOut(folder));
  }
}

bool IsForeign(const std::string& folder) {
  if (!fs::is_directory(folder) || fs::exists(fs::path(folder) / kManifest)) return false;
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return !IsOurs(entry.path().filename());
  });
}

void RemoveCheckpoint(const std::string& folder) {
  fs::remove(fs::path(folder) / kManifest);
  RemoveLeftoversOfTag(folder);
  std::error_code ignored;
  if (fs::is_empty(folder, ignored)) fs::remove(folder, ignored);
}

void RemoveLeftovers(const std::string& dir) {
  std::vector<fs::path> tags;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename();
    std::error_code ignored;
    // One that cannot be read is none of ours, such as lost+found.
    const bool is_ours =
        entry.is_directory(ignored) && access(entry.path().c_str(), R_OK | X_OK) == 0;
    if (is_ours) tags.push_back(entry.path());
    if (name.starts_with("latest.tmp.")) fs::remove(entry.path(), ignored);
  }
  for (const fs::path& tag : tags)
    RemoveLeftoversOfTag(tag);
}

}  // namespace dsat::engine
