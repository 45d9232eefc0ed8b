// Makes an engine and everything that it runs on from a model and a ds_config, as
// deepspeed.initialize() does.
//
//   auto world = JoinGroup(ReadRankEnvironment());
//   auto training = Initialize(*world, {.model = ..., .config = ConfigFromFile("ds_config.json"),
//                                       .device = MakeCpuDevice(1), .dataset = ...});
//   Engine& engine = training->engine();
//
// Several trainings may live in one process, each with a model, settings, memory and communication
// of its own (a teacher and its student, for example).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/json.h"
#include "engine/backend/device.h"
#include "engine/comm/process_group.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"
#include "engine/runtime/engine.h"

namespace dsat::engine {

// A ds_config and its name in error messages.
struct NamedConfig {
  Json ds_config;
  std::string source = "ds_config";
};

// The environment variable that names the file which ConfigFromEnvironment reads.
inline constexpr char kEnvConfig[] = "DSAT_CONFIG";

// Throw as ReadJsonFile; kNotFound if the variable is not set.
NamedConfig ConfigFromFile(const std::string& path);
NamedConfig ConfigFromEnvironment();

struct TrainingArgs {
  Model model;
  NamedConfig config;
  std::unique_ptr<Device> device;  // MakeCpuDevice(RankEnvironment::num_threads), or OpenDevice.
  // OpenDataset's or one of your own; nullptr: batches are given to Engine::Forward.
  std::unique_ptr<Dataset> dataset;
  int64_t seq_len = 0;              // T of batches; 0 is the model's max_seq_len.
  int64_t device_memory_bytes = 0;  // Hard limits of this rank; 0 is no limit.
  int64_t host_memory_bytes = 0;
};

// Owns an engine and everything that the engine runs on.
class Training {
 public:
  // See Initialize.
  Training(ProcessGroup& world, TrainingArgs args);
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  ~Training();

  Engine& engine();
  const Model& model() const;
  const Arena& device_memory() const;

 private:
  struct Parts;

  const std::unique_ptr<Parts> parts_;
};

// A collective call over the ranks of `world`. It splits a group from `world`, so that trainings do
// not disturb each other and may outlive `world`. The config's seed determines the initial
// parameters. Throws as ParseDsConfig and Engine's constructor, and kInvalidArgument if model and
// data do not fit each other or seq_len is not in [1, max_seq_len]. REQUIRES: args.device.
std::unique_ptr<Training> Initialize(ProcessGroup& world, TrainingArgs args);

}  // namespace dsat::engine
