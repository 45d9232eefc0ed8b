// The file .deepspeed_env.
#include <filesystem>

#include "searcher/hosts/hosts.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The content of the file.
void DeepSpeedEnv(std::string_view input) {
  const std::filesystem::path path = WriteInput(".deepspeed_env", input);
  ReadDeepSpeedEnv(".deepspeed_env", {path.parent_path().string()});
}

}  // namespace dsat::fuzz
