// The three batch sizes of a config, and the config of a trial.
#include "engine/config/batch.h"

#include <cmath>
#include <optional>

#include "base/error.h"
#include "engine/config/settings.h"

namespace dsat::engine {
namespace {

constexpr char kTotal[] = "/train_batch_size";
constexpr char kMicro[] = "/train_micro_batch_size_per_gpu";
constexpr char kAccumulation[] = "/gradient_accumulation_steps";
constexpr char kStages[] = "/pipeline/stages";
constexpr char kTensors[] = "/tensor_parallel/autotp_size";
constexpr char kSequences[] = "/sequence_parallel_size";
constexpr char kExperts[] = "/expert_parallel/autoep_size";

// The number at a pointer; nullopt if it is not given, null or "auto".
std::optional<int64_t> Given(const Json& ds_config, const char* pointer,
                             const std::string& source) {
  const Json* value = FindAtPointer(ds_config, pointer);
  if (value == nullptr || value->is_null() || IsAuto(*value)) return std::nullopt;
  std::string expected = Keys().Misfit(*Keys().Find(pointer), *value);
  if (expected.empty()) return WholeNumber(*value);
  Throw(ErrorCode::kInvalidArgument, "{}: {} is {}; expected {}", source, pointer, value->dump(),
        expected);
}

// A number of ranks or experts; nullopt if it is not given or no number.
std::optional<double> SizeAt(const Json& ds_config, const char* pointer) {
  const Json* size = FindAtPointer(ds_config, pointer);
  if (size == nullptr || !size->is_number()) return std::nullopt;
  return size->get<double>();  // It may be written as 2.0.
}

// The size at a pointer, 1 if none is given. Throws if it does not divide `whole`.
int64_t Divisor(const Json& ds_config, const std::string& source, const char* pointer,
                int64_t whole, const char* what) {
  const double size = SizeAt(ds_config, pointer).value_or(1);
  if (pointer == kTensors && size == 0) return 1;  // DeepSpeed's default.
  if (size >= 1 && std::fmod(static_cast<double>(whole), size) == 0)
    return static_cast<int64_t>(size);
  Throw(ErrorCode::kInvalidArgument, "{}: {} is {}; expected a divisor of {}, {}", source, pointer,
        FindAtPointer(ds_config, pointer)->dump(), what, whole);
}

// a * b, or -1 if it does not fit.
int64_t Product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? -1 : product;
}

std::string Described(std::optional<int64_t> number) {
  return number ? fmt::format("{}", *number) : "not given";
}

// The batch sizes that a config gives, before any is inferred.
struct Numbers {
  std::optional<int64_t> total, micro, accumulation;
  int64_t ranks = 1;

  [[noreturn]] void Refuse(const std::string& source, const std::string& expected) const {
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} is {}, {} is {}, {} is {}, data-parallel size is {}; expected {}", source, kTotal,
          Described(total), kMicro, Described(micro), kAccumulation, Described(accumulation), ranks,
          expected);
  }
};

// DeepSpeed's inference: divisions round down, and the product is checked afterwards.
BatchSizes Infer(const Numbers& n) {
  if (n.total && n.micro) {
    return {*n.total, *n.micro, n.accumulation.value_or(*n.total / *n.micro / n.ranks)};
  }
  int64_t accumulation = n.accumulation.value_or(1);
  if (n.total) return {*n.total, *n.total / n.ranks / accumulation, accumulation};
  return {Product(Product(*n.micro, accumulation), n.ranks), *n.micro, accumulation};
}

void WriteBatchSizes(Json& config, const BatchSizes& batch) {
  SetAtPointer(config, kTotal, batch.train_batch_size);
  SetAtPointer(config, kMicro, batch.micro_batch_size);
  SetAtPointer(config, kAccumulation, batch.accumulation_steps);
}

}  // namespace

int64_t DataParallelSize(const Json& ds_config, const std::string& source, int64_t world_size) {
  DSAT_CHECK(world_size > 0, "world size {}", world_size);
  const int64_t of_stage =
      world_size / Divisor(ds_config, source, kStages, world_size, "the number of ranks");
  const int64_t by_tensors =
      of_stage / Divisor(ds_config, source, kTensors, of_stage, "the ranks of a pipeline stage");
  const Json* enabled = FindAtPointer(ds_config, "/expert_parallel/enabled");
  if (enabled != nullptr && *enabled == true) {
    Divisor(ds_config, source, kExperts, of_stage, "the ranks of a pipeline stage");
    const int64_t num_experts = SizeAt(ds_config, "/dsat/trainer/num_experts").value_or(0);
    Divisor(ds_config, source, kExperts, num_experts, "the experts of the model");
  }
  return by_tensors /
         Divisor(ds_config, source, kSequences, by_tensors, "the ranks that do not share tensors");
}

BatchSizes ResolveBatchSizes(const Json& ds_config, const std::string& source, int64_t world_size) {
  const int64_t data_parallel_size = DataParallelSize(ds_config, source, world_size);
  Numbers numbers{Given(ds_config, kTotal, source), Given(ds_config, kMicro, source),
                  Given(ds_config, kAccumulation, source), data_parallel_size};
  if (!numbers.total && !numbers.micro) {
    const Json* micro = FindAtPointer(ds_config, kMicro);
    bool left_open = micro != nullptr && IsAuto(*micro);
    if (!left_open) numbers.Refuse(source, fmt::format("{} or {}", kTotal, kMicro));
    numbers.micro = 1;
  }
  BatchSizes batch = Infer(numbers);
  if (batch.train_batch_size < 0) numbers.Refuse(source, "a product that fits 63 bits");
  if (batch.micro_batch_size < 1 || batch.accumulation_steps < 1) {
    numbers.Refuse(source, fmt::format("a {} of at least micro-batch size x ranks", kTotal));
  }
  if (batch.micro_batch_size > kMostMicroBatch || batch.accumulation_steps > kMostAccumulation) {
    numbers.Refuse(source, fmt::format("at most {} samples in a micro-batch and {} micro-batches",
                                       kMostMicroBatch, kMostAccumulation));
  }
  int64_t product =
      Product(Product(batch.micro_batch_size, batch.accumulation_steps), data_parallel_size);
  if (product != batch.train_batch_size) {
    numbers.Refuse(source,
                   fmt::format("{} = {} x {} x data-parallel size", kTotal, kMicro, kAccumulation));
  }
  return batch;
}

Json ConfigForTrial(const Json& base, const std::map<std::string, Json>& assignment,
                    int64_t world_size) {
  const std::string source = "trial";
  BatchSizes batch = ResolveBatchSizes(base, source, world_size);
  Json config = CanonicalConfig(base, Auto::kKeep, source);
  config.erase("autotuning");
  // The base decides what the assignment leaves open, except that the total follows.
  WriteBatchSizes(config, batch);
  config.erase(kTotal + 1);
  if (assignment.contains(kTotal)) {
    // A total with a micro-batch size sets the accumulation; alone, it sets the micro-batch size.
    bool sets_micro = assignment.contains(kMicro);
    config.erase((sets_micro ? kAccumulation : kMicro) + 1);
  }
  for (const auto& [pointer, value] : assignment)
    SetAtPointer(config, pointer, value);
  if (assignment.contains(kExperts) && assignment.at(kExperts) > 1)
    SetAtPointer(config, "/expert_parallel/enabled", true);
  config = CanonicalConfig(config, Auto::kKeep, source);
  WriteBatchSizes(config, ResolveBatchSizes(config, source, world_size));
  return config;
}

}  // namespace dsat::engine
