// Decides whether a search keeps the global batch fixed while configurations vary.
#pragma once

#include <string>

#include "proto/experiment.h"

namespace dsat {

// Sets spec.options.train_batch_size by `rule`, the text of --train-batch-size:
//   "keep"    the submitted ds_config's, given or inferred
//   "any"     none: it follows the micro-batch size
//   a number  that one
//   ""        "keep" for auto and wherever the ds_config gives it as a number, because it belongs
//             to the training recipe, else "any". It is "any" also with --compat determined, and
//             for auto if the user's own space has micro-batch sizes.
// Throws kInvalidArgument naming the values and the way out if the data-parallel ranks do not
// divide it, if no multiple of options.divisible_by is a micro-batch size for it or one of the
// user's own sizes, or if the rule contradicts --compat determined. REQUIRES: spec.ds_config,
// method, slots_per_trial and the other options are set.
void SetTrainBatchSize(const std::string& rule, ExperimentSpec& spec);

}  // namespace dsat
