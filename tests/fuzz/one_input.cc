// The table of targets, and the files that they read.
#include "tests/fuzz/one_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/unique_fd.h"

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
                                              {"client_frames", ClientFrames},
                                              {"command_line", CommandLine},
                                              {"database_file", DatabaseFile},
                                              {"database_rows", DatabaseRows},
                                              {"dataset_file", DatasetFile},
                                              {"deepspeed_env", DeepSpeedEnv},
                                              {"ds_config_file", DsConfigFile},
                                              {"experiment_file", ExperimentFile},
                                              {"host_file", HostFile},
                                              {"hugging_face_config", HuggingFaceConfig},
                                              {"idx_files", IdxFiles},
                                              {"machine_texts", MachineTexts},
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
  // A file stays open, because to open it takes longer than to write it.
  static std::map<std::string, UniqueFd> files;
  const std::string path = folder.path + "/" + name;
  UniqueFd& file = files[name];
  if (!file) file = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  const auto bytes = static_cast<ssize_t>(content.size());
  DSAT_CHECK(pwrite(file.get(), content.data(), content.size(), 0) == bytes, "{}", path);
  DSAT_CHECK(ftruncate(file.get(), bytes) == 0, "{}", path);
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

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t bytes = header.size();
  std::string content(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  return content.append(header).append(data);
}

}  // namespace dsat::fuzz
