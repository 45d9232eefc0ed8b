// Pipeline parallelism.
#include "engine/runtime/executor/pipeline.h"

#include <algorithm>
#include <numeric>

#include "base/regex.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/runtime/state/redistribute.h"

namespace dsat::engine {
namespace {

bool Matches(const std::string& name, const std::string& pattern, const std::string& what) {
  const RE2 regex(pattern, RegexOptions(/*ignores_case=*/true));
  if (regex.ok()) return RE2::PartialMatch(name, regex);
  Throw(ErrorCode::kInvalidArgument, "{} is \"type:{}\": {}; expected a regular expression", what,
        pattern, regex.error());
}

std::vector<int64_t> WeightsOf(const Model& model, const std::string& method,
                               const std::string& what) {
  std::vector<int64_t> weights;
  for (const auto& layer : model.layers) {
    if (method == "uniform") {
      weights.push_back(1);
    } else if (method == "parameters" || method == "best") {
      weights.push_back(NumParams(*layer));
    } else if (method.starts_with("type:")) {
      weights.push_back(Matches(layer->name(), method.substr(5), what) ? 1 : 0);
    } else {
      Throw(ErrorCode::kInvalidArgument,
            "{} is \"{}\"; expected \"uniform\", \"parameters\", \"best\" or \"type:REGEX\"", what,
            method);
    }
  }
  if (std::accumulate(weights.begin(), weights.end(), int64_t{0}) == 0) {
    Throw(ErrorCode::kInvalidArgument, "{} is \"{}\", which no layer's name matches", what, method);
  }
  return weights;
}

// The begins of stages of one layer or more. The heaviest stage weighs as little as possible; of
// the divisions of which this is true, it is one whose lightest stage weighs the most. With equal
// weights whose number does not divide, the first stages have one layer more (DeepSpeed's
// partition_uniform).
std::vector<int> DivideByWeight(const std::vector<int64_t>& weights, int num_stages) {
  const int num_layers = static_cast<int>(weights.size());
  std::vector<int64_t> sums = {0};  // The sums of the first weights.
  for (const int64_t weight : weights)
    sums.push_back(sums.back() + weight);
  // The best of so many first stages with so many layers; -1: not possible.
  const std::vector<int64_t> none(num_layers + 1, -1);
  std::vector<std::vector<int64_t>> most(num_stages + 1, none), least(num_stages + 1, none);
  std::vector<std::vector<int>> last_begin(num_stages + 1, std::vector<int>(num_layers + 1, 0));
  most[0][0] = 0;
  least[0][0] = sums.back();
  const auto for_each_last_stage = [&](const auto& visit) {
    for (int stages = 1; stages <= num_stages; ++stages) {
      for (int layers = stages; layers <= num_layers; ++layers) {
        for (int begin = stages - 1; begin < layers; ++begin) {
          const bool is_possible = most[stages - 1][begin] >= 0;
          if (is_possible) visit(stages, layers, begin, sums[layers] - sums[begin]);
        }
      }
    }
  };
  for_each_last_stage([&](int stages, int layers, int begin, int64_t weight) {
    int64_t& best = most[stages][layers];
    const int64_t heaviest = std::max(most[stages - 1][begin], weight);
    if (best < 0 || heaviest < best) best = heaviest;
  });
  for_each_last_stage([&](int stages, int layers, int begin, int64_t weight) {
    if (weight > most[num_stages][num_layers]) return;
    const int64_t lightest = std::min(least[stages - 1][begin], weight);
    if (lightest < 0 || lightest < least[stages][layers]) return;
    least[stages][layers] = lightest;
    last_begin[stages][layers] = begin;
  });
  std::vector<int> begins = {num_layers};
  for (int stages = num_stages; stages > 0; --stages)
    begins.insert(begins.begin(), last_begin[stages][begins.front()]);
  return begins;
}

}  // namespace

std::vector<int> PartitionLayers(const Model& model, int num_stages, const std::string& method,
                                 const std::string& what) {
  const std::vector<int64_t> weights = WeightsOf(model, method, what);
  if (std::ssize(weights) < num_stages) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: the model has {} layers; expected at least {}, one per stage", what, weights.size(),
          num_stages);
  }
  return DivideByWeight(weights, num_stages);
}

Groups::Groups(ProcessGroup& world, int num_stages) : world_(world) {
  DSAT_CHECK(num_stages > 0 && world.size() % num_stages == 0);
  if (num_stages == 1) return;
  const int num_data = world.size() / num_stages;
  std::vector<int> stage_of, data_of;
  for (int rank = 0; rank < world.size(); ++rank) {
    stage_of.push_back(rank / num_data);
    data_of.push_back(rank % num_data);
  }
  data_ = world.Split(stage_of);
  pipeline_ = world.Split(data_of);
}

Traffic Groups::traffic() const {
  Traffic sum = world_.traffic();
  if (num_stages() == 1) return sum;
  sum += data_->traffic();
  sum += pipeline_->traffic();
  return sum;
}

TiedUnits::TiedUnits(const Model& model, const Plan& plan, DType dtype, const Groups& groups,
                     Arena& arena) {
  std::vector<int> holders;
  int64_t most_elems = 0;
  for (size_t u = 0; u < plan.units.size(); ++u) {
    if (model.IsFrozen(u) || plan.units[u].holders.size() < 2) continue;
    if (!holders.empty() && plan.units[u].holders != holders) {
      Throw(ErrorCode::kUnimplemented,
            "/pipeline/stages: two layers are tied across different stages; expected ties between "
            "the same ones (fewer stages, or another /pipeline/partition)");
    }
    holders = plan.units[u].holders;
    most_elems = std::max(most_elems, plan.units[u].num_elems);
  }
  if (holders.empty()) return;
  std::vector<int> colors;
  for (int rank = 0; rank < groups.world().size(); ++rank) {
    const int stage = rank / groups.data().size();
    const bool holds = std::ranges::count(holders, stage) > 0;
    colors.push_back(holds ? rank % groups.data().size() : -1);
  }
  group_ = groups.world().Split(colors);
  if (group_ == nullptr) return;
  const int64_t row_elems = SummedRowElems(most_elems, group_->size());
  const int64_t bytes = row_elems * group_->size() * BytesPerElem(dtype);
  charge_ = ChargeBuckets(arena, bytes);
  bucket_ = group_->Allocate(bytes);
}

void TiedUnits::Sum(Tensor grad, Tier tier, Kernels& kernels) {
  const int64_t row_elems = SummedRowElems(grad.num_elems, group_->size());
  const Tensor bucket = {bucket_.data, row_elems * group_->size(), grad.dtype};
  const Tensor sent = bucket.Slice(0, grad.num_elems);
  const bool on_device = tier == Tier::kDevice;
  on_device ? kernels.Run(op::Cast{sent, grad}) : kernels.stream().CopyToDevice(sent, grad);
  group_->AllReduce(bucket_, grad.dtype, row_elems);
  on_device ? kernels.Run(op::Cast{grad, sent}) : kernels.stream().CopyToHost(grad, sent);
}

std::vector<int64_t> InputBytes(const Model& model, const Batch& batch, DType dtype) {
  const auto kernels = MakeCountingKernels(1);
  Arena arena("device memory", Arena::Kind::kCounting, 0);
  std::vector<int64_t> bytes;
  Buffer x;
  for (const auto& layer : model.layers) {
    bytes.push_back(x.bytes());
    std::vector<Tensor> params;
    for (const ParamSpec& spec : layer->params())
      params.push_back({nullptr, spec.StoredElems(), dtype});
    for (const TiedParam& tied : layer->tied()) {
      const ParamSpec& spec = model.layers[tied.layer]->params()[tied.param];
      params.push_back({nullptr, spec.StoredElems(), dtype});
    }
    double loss = 0;
    Saved saved;
    const LayerContext context = {.kernels = *kernels,
                                  .arena = arena,
                                  .dtype = dtype,
                                  .batch = batch,
                                  .params = params,
                                  .grads = {},
                                  .loss = &loss};
    x = layer->Forward(context, x, saved);
  }
  bytes.push_back(x.bytes());
  return bytes;
}

}  // namespace dsat::engine
