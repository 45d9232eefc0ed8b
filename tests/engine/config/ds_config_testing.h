// Shared by the tests of ds_config.
#pragma once

#include <algorithm>
#include <string>

#include "base/json.h"
#include "engine/config/ds_config.h"
#include "engine/config/validate.h"

namespace dsat::engine {

// A text with ' for ", so that cases read well.
inline Json J(std::string text) {
  std::replace(text.begin(), text.end(), '\'', '"');
  return Json::parse(text);
}

// A valid config with these keys merged in.
inline Json With(const std::string& text) {
  Json config = {{"train_micro_batch_size_per_gpu", 1}};
  MergeJson(config, J(text));
  return config;
}

inline DsConfig Parse(const Json& config, std::vector<std::string>* warnings = nullptr) {
  return ParseDsConfig(config, "ds.json", 2, warnings);
}

}  // namespace dsat::engine
