// The table of targets, and the files that they read.
#include "tests/fuzz/one_input.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace dsat::fuzz {
namespace {

// In memory if possible, because thousands of files are written.
struct Folder {
  Folder() : path("/dev/shm/dsat-fuzz-XXXXXX") {
    if (mkdtemp(path.data()) != nullptr) return;
    path = (std::filesystem::temp_directory_path() / "dsat-fuzz-XXXXXX").string();
    DSAT_CHECK(mkdtemp(path.data()) != nullptr);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

const std::vector<Target>& Targets() {
  static const std::vector<Target> targets = {{"checkpoint_manifest", CheckpointManifest},
                                              {"database_file", DatabaseFile},
                                              {"database_rows", DatabaseRows},
                                              {"dataset_file", DatasetFile},
                                              {"deepspeed_env", DeepSpeedEnv},
                                              {"ds_config_file", DsConfigFile},
                                              {"experiment_file", ExperimentFile},
                                              {"host_file", HostFile},
                                              {"hugging_face_config", HuggingFaceConfig},
                                              {"idx_files", IdxFiles},
                                              {"metrics_file", MetricsFile},
                                              {"model_block", ModelBlock},
                                              {"profile_file", ProfileFile},
                                              {"safetensors_file", SafetensorsFile},
                                              {"script_files", ScriptFiles},
                                              {"supervisor_messages", SupervisorMessages},
                                              {"tokenizer_file", TokenizerFile},
                                              {"trial_service", TrialService}};
  return targets;
}

void RunOne(const Target& target, std::string_view input) {
  try {
    target.run(input);
  } catch (const Error&) {
  }
}

std::string WriteInput(const std::string& name, std::string_view content) {
  static const Folder folder;
  const std::string path = folder.path + "/" + name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  DSAT_CHECK(file.good(), "{}", path);
  return path;
}

std::vector<std::string_view> Parts(std::string_view input, size_t count) {
  constexpr std::string_view kSeparator = "\n%%\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const size_t end = input.find(kSeparator);
    parts.push_back(input.substr(0, end));
    input = end == input.npos ? "" : input.substr(end + kSeparator.size());
  }
  parts.push_back(input);
  return parts;
}

}  // namespace dsat::fuzz
