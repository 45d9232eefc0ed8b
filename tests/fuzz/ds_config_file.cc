// A ds_config.json.
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/config/ds_config.h"
#include "engine/config/validate.h"
#include "searcher/input/user_space.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The text of the file.
void DsConfigFile(std::string_view input) {
  Json config = ParseTolerantJson(input, "ds_config.json");
  std::vector<std::string> warnings;
  try {
    engine::ParseDsConfig(config, "ds_config.json", 4, &warnings);
  } catch (const Error&) {  // Perhaps of a key that only DeepSpeed knows.
  }
  TakeLists("ds_config.json", config);
  engine::ValidateDsConfig(config, "ds_config.json", 2);
}

}  // namespace dsat::fuzz
