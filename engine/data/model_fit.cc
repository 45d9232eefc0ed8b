// Checks whether a model can be trained on a data set and on a device.
#include "engine/data/model_fit.h"

#include "base/error.h"

namespace dsat::engine {
namespace {

std::string Describe(const ImageShape& image) {
  if (image.NumElems() == 0) return "tokens";
  return fmt::format("images of {} x {} x {}", image.height, image.width, image.channels);
}

}  // namespace

void CheckModelFitsData(const Model& model, const Dataset& data, const std::string& model_what,
                        const std::string& data_what) {
  if (model.image != data.image()) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: the model takes {}, but {} has {}; change one of them (docs/models.md)", model_what,
          Describe(model.image), data_what, Describe(data.image()));
  }
  if (data.vocab_size() <= model.vocab_size) return;
  Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected at least the data's, {}", model_what,
        model.image.NumElems() > 0 ? "classes" : "vocab_size", model.vocab_size, data.vocab_size());
}

void CheckBatch(const Batch& batch, const Model& model, int64_t max_seq_len, bool needs_targets) {
  const bool is_image = model.image.NumElems() > 0;
  if (batch.B < 1 || batch.T < 1 || batch.T > max_seq_len) {
    Throw(ErrorCode::kInvalidArgument,
          "batch: {} rows of length {}; expected at least one row, of length 1 to {}", batch.B,
          batch.T, max_seq_len);
  }
  if (is_image ? batch.pixels == nullptr : batch.tokens == nullptr)
    Throw(ErrorCode::kInvalidArgument, "batch: has no {}", is_image ? "pixels" : "tokens");
  if (needs_targets && batch.targets == nullptr)
    Throw(ErrorCode::kInvalidArgument, "batch: has no targets");
  for (const auto& [values, what] :
       {std::pair(batch.tokens, "token"), std::pair(batch.targets, "target")}) {
    for (int64_t i = 0; values != nullptr && i < batch.B * batch.T; ++i) {
      if (values[i] >= 0 && values[i] < model.vocab_size) continue;
      if (values == batch.targets && values[i] == kIgnoredTarget) continue;
      Throw(ErrorCode::kInvalidArgument, "batch: {} {} is {}; expected one in [0, {})", what, i,
            values[i], model.vocab_size);
    }
  }
}

void CheckModelFitsDevice(const Model& model, DeviceKind device, const std::string& model_what) {
  if (model.layers.empty())
    Throw(ErrorCode::kInvalidArgument, "{}: has no layers; expected at least one", model_what);
  if (device != DeviceKind::kCuda || model.head_channels <= kMaxCudaHeadChannels) return;
  Throw(
      ErrorCode::kUnimplemented,
      "{}: attention heads have {} channels (its width / number of heads); expected at most {} on "
      "a GPU: more heads, or /resources/device \"cpu\"",
      model_what, model.head_channels, kMaxCudaHeadChannels);
}

}  // namespace dsat::engine
