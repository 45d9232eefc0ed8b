// An engine with all that it runs on.
#include "engine/runtime/initialize.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "engine/data/model_fit.h"
#include "engine/runtime/resources.h"

namespace dsat::engine {
namespace {

int64_t CheckedSeqLen(int64_t seq_len, const Model& model) {
  if (seq_len == 0) return model.max_seq_len;
  if (seq_len < 1 || seq_len > model.max_seq_len) {
    Throw(ErrorCode::kInvalidArgument, "seq_len is {}; expected 1 to the model's max_seq_len, {}",
          seq_len, model.max_seq_len);
  }
  return seq_len;
}

}  // namespace

NamedConfig ConfigFromFile(const std::string& path) {
  return {ReadJsonFile(path), path};
}

NamedConfig ConfigFromEnvironment() {
  const char* path = std::getenv(kEnvConfig);
  if (path == nullptr) {
    Throw(ErrorCode::kNotFound, "{} is not set; expected the path of a ds_config.json", kEnvConfig);
  }
  return ConfigFromFile(path);
}

struct Training::Parts {
  Parts(ProcessGroup& world, TrainingArgs args);

  const DsConfig config;
  const Model model;
  const std::unique_ptr<Device> device;
  const std::unique_ptr<ProcessGroup> group;
  const std::unique_ptr<Dataset> dataset;
  TierMemory memory;
  Engine engine;
};

Training::Parts::Parts(ProcessGroup& world, TrainingArgs args)
    : config(ParseOnRank(args.config.ds_config, args.config.source, world.rank(), world.size())),
      model(std::move(args.model)),
      device(std::move(args.device)),
      group(device->MakeGroup(world.Split(std::vector<int>(static_cast<size_t>(world.size()))))),
      dataset(std::move(args.dataset)),
      memory(*device, args.device_memory_bytes, args.host_memory_bytes),
      engine({model, *group, memory.view(), dataset.get(), CheckedSeqLen(args.seq_len, model)},
             config, static_cast<uint64_t>(config.seed)) {}

Training::Training(ProcessGroup& world, TrainingArgs args)
    : parts_(std::make_unique<Parts>(world, std::move(args))) {}

Training::~Training() = default;

Engine& Training::engine() {
  return parts_->engine;
}

const Model& Training::model() const {
  return parts_->model;
}

const Arena& Training::device_memory() const {
  return parts_->memory.device();
}

std::unique_ptr<Training> Initialize(ProcessGroup& world, TrainingArgs args) {
  DSAT_CHECK(args.device != nullptr);
  CheckModelFitsDevice(args.model, args.device->kind(), "model");
  if (args.dataset != nullptr) CheckModelFitsData(args.model, *args.dataset, "model", "dataset");
  return std::make_unique<Training>(world, std::move(args));
}

}  // namespace dsat::engine
