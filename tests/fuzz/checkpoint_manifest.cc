// The manifest of a checkpoint, as it is and with the checksum that makes it credible.
#include "engine/files/checkpoint_manifest.h"

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "engine/files/crc32.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The text of manifest.json.
void CheckpointManifest(std::string_view input) {
  const std::string folder =
      std::filesystem::path(WriteInput("manifest.json", input)).parent_path().string();
  try {
    engine::ReadManifest(folder);
  } catch (const Error&) {
  }
  Json json = ParseTolerantJson(input, "manifest.json");
  if (!json.is_object()) return;
  json.erase("crc32");
  json["format"] = "dsat-checkpoint-2";
  const auto sum = engine::Crc32(0, json.dump(-1, ' ', false, Json::error_handler_t::replace));
  json["crc32"] = fmt::format("{:08x}", sum);
  WriteInput("manifest.json", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  engine::ReadManifest(folder);
}

}  // namespace dsat::fuzz
