// The parsers of outside input, each as a function of one input: what libFuzzer calls
// (fuzz_main.cc, scripts/fuzz), and what the ordinary test calls with the inputs in corpus/ and
// with mutations of them (fuzz_test.cc).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dsat::fuzz {

// A larger allocation while an input is parsed is a defect.
inline constexpr size_t kMostBytes = size_t{256} << 20;

// Each ends normally or throws Error. Every other exception, a crash and a hang are defects. What
// an input consists of stands above the function's definition in <name>.cc.
void CheckpointManifest(std::string_view input);
void ClientFrames(std::string_view input);
void CommandLine(std::string_view input);
void DatabaseFile(std::string_view input);
void DatabaseRows(std::string_view input);
void DatasetFile(std::string_view input);
void DeepSpeedEnv(std::string_view input);
void DsConfigFile(std::string_view input);
void ExperimentFile(std::string_view input);
void HostFile(std::string_view input);
void HuggingFaceConfig(std::string_view input);
void IdxFiles(std::string_view input);
void MachineTexts(std::string_view input);
void MetricsFile(std::string_view input);
void ModelBlock(std::string_view input);
void ProfileFile(std::string_view input);
void SafetensorsFile(std::string_view input);
void ScriptFiles(std::string_view input);
void SupervisorMessages(std::string_view input);
void TokenizerFile(std::string_view input);
void TrialService(std::string_view input);

struct Target {
  const char* name;  // The folder of its inputs in corpus/.
  void (*run)(std::string_view input);
};

// All of them, by name.
const std::vector<Target>& Targets();

// Runs a target, and takes Error as an ordinary end.
void RunOne(const Target& target, std::string_view input);

// Writes `content` to the file `name` in a folder of this process, which is removed at its end.
// Returns the path.
std::string WriteInput(const std::string& name, std::string_view content);

// The input's `count` parts, which lines of "%%" separate; the last ones may be empty.
std::vector<std::string_view> Parts(std::string_view input, size_t count);

// A safetensors file: the size of the header, the header, the data.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

}  // namespace dsat::fuzz
