// Pipeline parallelism.
#include "engine/runtime/executor/pipeline.h"

#include <algorithm>
#include <numeric>

#include "base/regex.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"

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

// The begins of stages of equal numbers of layers; if the number does not divide, the first stages
// have one more (DeepSpeed's partition_uniform).
std::vector<int> DivideEqually(int num_layers, int num_stages) {
  std::vector<int> begins = {0};
  for (int stage = 0; stage < num_stages; ++stage) {
    const int rest = stage < num_layers % num_stages ? 1 : 0;
    begins.push_back(begins.back() + num_layers / num_stages + rest);
  }
  return begins;
}

// The begins of stages that weigh at most `most` each, taking as many layers as they can; more than
// num_stages + 1 of them if that is not enough.
std::vector<int> Fill(const std::vector<int64_t>& weights, int num_stages, int64_t most) {
  std::vector<int> begins = {0};
  int64_t weight = 0;
  const int num_layers = static_cast<int>(weights.size());
  for (int layer = 0; layer < num_layers; ++layer) {
    // Every later stage needs a layer.
    const int stages_left = num_stages - static_cast<int>(begins.size());
    const bool must_cut = num_layers - layer == stages_left;
    if (layer > begins.back() && (weight + weights[layer] > most || must_cut)) {
      begins.push_back(layer);
      weight = 0;
    }
    weight += weights[layer];
  }
  begins.push_back(num_layers);
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
  if (method == "uniform") return DivideEqually(static_cast<int>(weights.size()), num_stages);
  // The least bound that num_stages stages can keep, by bisection.
  int64_t low = *std::ranges::max_element(weights);
  int64_t high = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const bool enough = std::ssize(Fill(weights, num_stages, middle)) <= num_stages + 1;
    enough ? high = middle : low = middle + 1;
  }
  return Fill(weights, num_stages, low);
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
    const bool frozen = !model.frozen.empty() && model.frozen[u];
    if (frozen || plan.units[u].holders.size() < 2) continue;
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
  charge_.emplace(arena, bytes);
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
    const Batch shape = {.B = batch.B, .T = batch.T};
    const LayerContext context = {.kernels = *kernels,
                                  .arena = arena,
                                  .dtype = dtype,
                                  .batch = shape,
                                  .params = params,
                                  .grads = {},
                                  .loss = &loss};
    x = layer->Forward(context, x, saved);
  }
  bytes.push_back(x.bytes());
  return bytes;
}

}  // namespace dsat::engine
