// A checkpoint: its manifest, as it is and with the checksum that makes it credible, and then the
// files that it names.
#include "engine/files/checkpoint_manifest.h"

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "engine/files/collate.h"
#include "engine/files/crc32.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

std::string Sum(std::string_view bytes) {
  return fmt::format("{:08x}", engine::Crc32(0, bytes));
}

}  // namespace

// The text of manifest.json; the header of a file as JSON, and its data.
void CheckpointManifest(std::string_view input) {
  const auto parts = Parts(input, 3);
  static const std::string dir = std::filesystem::path(WriteInput("latest", "tag")).parent_path();
  static const std::string folder = dir + "/tag";
  static const bool is_new = std::filesystem::create_directory(folder);
  DSAT_CHECK(is_new);
  WriteInput("tag/manifest.json", parts[0]);
  try {
    engine::ReadManifest(folder);
  } catch (const Error&) {
  }
  Json json = ParseTolerantJson(parts[0], "manifest.json");
  if (!json.is_object()) return;
  const std::string file = SafetensorsBytes(parts[1], parts[2]);
  const std::string name = engine::RankFileName(0, 0);
  WriteInput("tag/" + name, file);
  json.erase("crc32");
  json["format"] = "dsat-checkpoint-2";
  if (!parts[1].empty())
    json["files"] = {{{"name", name}, {"bytes", file.size()}, {"crc32", Sum(file)}}};
  json["crc32"] = Sum(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  WriteInput("tag/manifest.json", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  engine::Collate({.dir = dir, .out = dir + "/model.safetensors", .force = true},
                  [](int64_t, int64_t) {});
}

}  // namespace dsat::fuzz
