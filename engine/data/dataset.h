// Data as a deterministic sequence of samples: tokens, or images with their classes.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/json.h"
#include "engine/core/model_parts.h"

namespace dsat::engine {

// Thread-safe. The same index gives the same sample, whatever the number of ranks.
class Dataset {
 public:
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  virtual ~Dataset() = default;
  // Writes sample `index`, in [0, NumSamples(T)): tokens (T) and the token after each, targets (T),
  // or kIgnoredTarget if it does not count in the loss.
  // Throws kInvalidArgument if the data are too short for T. REQUIRES: image() is all 0.
  virtual void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const;
  // Writes image `index`, in [0, NumSamples(1)): pixels (height, width, channels), from -1 to 1,
  // and its class. REQUIRES: image() is not all 0.
  virtual void Image(int64_t index, float* pixels, int32_t* target) const;

  // All sizes are 0 if the data are tokens.
  virtual ImageShape image() const { return {}; }
  // Tokens, or classes, are in [0, vocab_size()).
  virtual int64_t vocab_size() const = 0;
  // The tokens or images of the files that it reads; 0 if it draws them.
  virtual int64_t size() const { return 0; }
  // The number of samples of T tokens before they repeat; one evaluation reads as many. kEndless
  // for training data.
  virtual int64_t NumSamples(int64_t /*T*/) const { return kEndless; }
};

// Training data, without end: each sample is a function of the block, the seed and its index. Types
// (docs/models.md):
// - {"type": "text", "path": "file, folder or glob, or a list of them", "seq_len": 128}
//     any files, read as bytes (vocabulary 256), or with "tokenizer", a tokenizer.json, as
//     documents
// - {"type": "jsonl", "path": "*.jsonl", "tokenizer": "tokenizer.json", "seq_len": 1024}
//     JSON Lines, of which each is a document with its text at "text_key" ("text"), or with a
//     "prompt", whose tokens are no targets, and a "completion"
// - {"type": "tokens", "path": "train.bin", "vocab_size": 50257, "seq_len": 1024}
//     files of 16-bit or 32-bit tokens as nanoGPT and llm.c write them
// - {"type": "synthetic", "seq_len": 128, "vocab_size": 256}
//     tokens of a fixed random Markov chain, so that there is something to learn
// - {"type": "cifar10", "path": "data_batch_*.bin"}
//     the binary files of CIFAR-10
// - {"type": "idx", "images": "train-images-idx3-ubyte", "labels": "train-labels-idx1-ubyte"}
//     the files of MNIST
// - {"type": "synthetic_images", "image_size": 32, "channels": 3, "classes": 10}
//     a fixed pattern for each class, and noise
// All types may have "validation" (OpenValidationDataset). Relative paths start at `base_dir`.
// `what` is the JSON pointer of the block for messages. Throws kNotFound naming the missing file,
// kInvalidArgument naming key and value (unknown type, files too short for seq_len, ...).
std::unique_ptr<Dataset> OpenDataset(const Json& data, const std::string& base_dir, int64_t seed,
                                     const std::string& what);

// The validation data that the block's "validation" describes. It has the same keys as the block,
// and keys that it lacks are those of the block, so that {"path": "val.txt"} is enough. Instead of
// another path, {"split": 0.05} holds the last 5 % of the files' bytes, tokens or images out of
// training. For synthetic data, {"samples": 512} gives the number of samples. Each sample comes
// once, in order and without overlap. Returns nullptr if the block has no "validation". Throws as
// OpenDataset.
std::unique_ptr<Dataset> OpenValidationDataset(const Json& data, const std::string& base_dir,
                                               int64_t seed, const std::string& what);

// Returns the block's seq_len, or `model_max` if the block has none. Throws kInvalidArgument if it
// is not in [1, model_max].
int64_t SeqLen(const Json& data, int64_t model_max, const std::string& what);

// Returns the element at `position` of the permutation of [0, size) that (seed, epoch) determine: a
// Feistel network over the next power of four, iterated until the value is in range (Black and
// Rogaway 2002). REQUIRES: 0 <= position < size.
int64_t Shuffled(int64_t position, int64_t size, uint64_t seed, uint64_t epoch);

}  // namespace dsat::engine
