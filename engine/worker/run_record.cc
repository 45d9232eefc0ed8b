// The record that a training keeps of itself in its checkpoints.
#include "engine/worker/run_record.h"

#include "base/regex.h"
#include "engine/runtime/checkpoint/checkpoint.h"

namespace dsat::engine {
namespace {

constexpr char kBatch[] = "train_batch_size";

bool Matches(const std::string& key, const char* pattern) {
  return RE2::FullMatch(key, RE2(pattern, RegexOptions()));
}

// Whether a training with another value of the key is another one.
bool IsIdentity(const std::string& key, const Json& was, const Json& is) {
  if (key == "/optimizer/type") return MomentsOf(was) != MomentsOf(is);
  // The weights from which it began, and keys that may change on the way.
  return Matches(key, "/(model|data)/.*") &&
         !Matches(key, "/model/(weights|config|frozen).*|/data/(size|validation).*");
}

std::string TextOf(const Json& value) {
  return value.is_null() ? "not given" : value.dump();
}

}  // namespace

Json RecordOf(const TrialTask& task, const DsConfig& config, const Dataset& data, int64_t seed) {
  Json record = {{"model", task.model},
                 {"data", task.data},
                 {"optimizer", task.ds_config.value("optimizer", Json::object())},
                 {"scheduler", task.ds_config.value("scheduler", Json())},
                 {"gradient_clipping", task.ds_config.value("gradient_clipping", Json())},
                 {"seed", seed},
                 {kBatch, config.batch.train_batch_size}};
  record["data"]["size"] = data.size();
  record["optimizer"]["type"] = config.optimizer.type;  // In lower case.
  return record;
}

std::string ChangesSince(const CheckpointManifest& manifest, const Json& record,
                         const std::string& folder) {
  const Json* const found = FindAtPointer(manifest.client_state, "/training");
  Json saved = found != nullptr && found->is_object() ? *found : Json::object();
  saved[kBatch] = manifest.engine.value(kBatch, record.at(kBatch));
  Json compared = record;
  for (const auto& [section, value] : record.items())
    if (!saved.contains(section)) compared.erase(section);
  const Json was = saved.flatten(), is = compared.flatten();
  const bool same_size = was.value("/data/size", Json()) == is.value("/data/size", Json());
  Json all = was;
  all.update(is);
  std::vector<std::string> refused, changes;
  for (const auto& [key, unused] : all.items()) {
    const Json before = was.value(key, Json()), now = is.value(key, Json());
    const bool may_move = same_size && Matches(key, "/data/(path|images|labels|tokenizer).*");
    if (before == now || may_move) continue;
    const char* const note =
        key.ends_with(kBatch) ? " (a learning rate belongs to a batch size)" : "";
    (IsIdentity(key, before, now) ? refused : changes)
        .push_back(fmt::format("{} was {} and is {}{}", key, TextOf(before), TextOf(now), note));
  }
  if (refused.empty()) return fmt::format("{}", fmt::join(changes, "; "));
  Throw(ErrorCode::kInvalidArgument,
        "{} is of another training: {}: set this back, or train into another folder", folder,
        fmt::join(refused, "; "));
}

}  // namespace dsat::engine
