// Checks whether a model can be trained on a data set and on a device.
#pragma once

#include <string>

#include "engine/core/device_kind.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// Throws kInvalidArgument if the model reads tokens and the data are images, or the other way
// round, or images of another shape, or if the data have more tokens or classes than the model.
// `model_what` and `data_what` are the JSON pointers of their blocks.
void CheckModelFitsData(const Model& model, const Dataset& data, const std::string& model_what,
                        const std::string& data_what);

// Throws kInvalidArgument if `batch`, of a caller, has no rows, lacks inputs or (if they are
// needed) targets, is longer than `max_seq_len`, or has a token or target that is not in [0,
// vocab_size); a target may be kIgnoredTarget.
void CheckBatch(const Batch& batch, const Model& model, int64_t max_seq_len, bool needs_targets);

// Throws kInvalidArgument if the model has no layers, kUnimplemented if the device's kernels do not
// support it. `model_what` as above.
void CheckModelFitsDevice(const Model& model, DeviceKind device, const std::string& model_what);

}  // namespace dsat::engine
