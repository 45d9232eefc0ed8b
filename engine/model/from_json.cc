// Shared by the readers of model blocks and of a config.json.
#include "engine/model/from_json.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace dsat::engine {

std::string PathFrom(const JsonBlock& block, const std::string& key, const std::string& base_dir,
                     const std::string& expected) {
  const Json& path = block.At(key);
  if (!path.is_string() || path.get<std::string>().empty()) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected {}", block.PointerTo(key), path.dump(),
          expected);
  }
  return std::filesystem::path(base_dir) / path.get<std::string>();
}

void ReadForeignConfig(const JsonBlock& block, const std::string& base_dir, const std::string& type,
                       const std::function<void(const JsonBlock& config)>& read) {
  const std::string path = PathFrom(block, "config", base_dir);
  const Json json = ReadJsonFile(path);
  const JsonBlock config(json, path + ": ");
  RefuseUnless(config, "model_type", {type});
  RefuseUnless(config, "quantization_config", {});
  read(config);
}

void RefuseUnless(const JsonBlock& config, const std::string& key,
                  const std::vector<Json>& accepted) {
  if (!config.Has(key) || config.At(key).is_null()) return;
  const Json& value = config.At(key);
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) return;
  std::string expected;
  for (const Json& one : accepted)
    expected += (expected.empty() ? "" : " or ") + one.dump();
  Throw(ErrorCode::kInvalidArgument, "{} is {}; the built-in engine's model has {}",
        config.PointerTo(key), value.dump(), expected.empty() ? "none" : expected);
}

}  // namespace dsat::engine
