// A small GPT-2 of the built-in engine, for tests of what is predicted of it.
#pragma once

#include "base/json.h"
#include "proto/trial.h"

namespace dsat {

// The hyperparameters of a training of it.
inline Json SmallGpt2(int64_t n_layer) {
  const Json model = {{"type", "gpt2"}, {"n_layer", n_layer}, {"n_embd", 64},
                      {"n_head", 2},    {"n_positions", 32},  {"vocab_size", 256}};
  return {{"model", model}, {"data", {{"seq_len", 32}}}};
}

// As dsat-trial reports it, except for speeds.
inline ModelProfile SmallGpt2Profile(int64_t n_layer, int64_t device_memory_bytes) {
  ModelProfile profile;
  profile.num_params = profile.trainable_num_params = 18'560 + 49'984 * n_layer;
  profile.activation_bytes_per_sample = 50'000 * n_layer;
  profile.device_memory_bytes = device_memory_bytes;
  profile.device = "cpu";
  profile.num_threads = 1;
  return profile;
}

}  // namespace dsat
