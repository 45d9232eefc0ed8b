// Decides what runs so that the answer can be trusted: a longer run of the pick (the soak), and,
// where the pick changes the global batch, runs of the submitted configuration with that batch (the
// references). The soak shows whether the configuration keeps fitting, and its losses are compared
// with those of the submitted configuration (searcher/search/loss_check.h). It is the last launch
// of the pick in the confirmation, or comes after it. A pick that fails drops out, and the next one
// is soaked.
#pragma once

#include <cstdint>
#include <optional>

#include "base/json.h"
#include "proto/trial.h"

namespace dsat {

struct SearchState;

// The next run of a search whose confirmation is over, without its number: a reference or a soak;
// nullopt if none is left, or no time for it. REQUIRES: no trial is running.
std::optional<Trial> NextProof(const SearchState& search);
// The same for a configuration that becomes the pick if the next launch confirms it.
std::optional<Trial> ProofOf(const SearchState& search, TrialId pick);

// The submitted configuration with a global batch of `train_batch_size`: the largest micro-batch
// that divides it and is not larger than the submitted one. nullopt if there is none.
std::optional<Json> WithGlobalBatch(const Json& submitted, int64_t train_batch_size);

}  // namespace dsat
