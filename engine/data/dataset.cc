// The two kinds of data: the bytes of text files, and a Markov chain.
#include "engine/data/dataset.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_block.h"
#include "base/rng.h"
#include "engine/data/mapped_text.h"

namespace dsat::engine {
namespace {

constexpr int64_t kMaxVocab = 1 << 24;

class TextDataset final : public Dataset {
 public:
  // `name` is for messages.
  TextDataset(const std::vector<std::string>& files, std::string name, int64_t seed)
      : text_(files), name_(std::move(name)), seed_(static_cast<uint64_t>(seed)) {}

  // Throws if the text cannot fill one sample of T tokens and the token after.
  void CheckLongEnough(int64_t T) const {
    if (text_.size() > T) return;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} bytes of text; expected at least {} for sequences of {} tokens", name_,
          text_.size(), T + 1, T);
  }

  void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const override {
    DSAT_CHECK(index >= 0 && T >= 1, "sample {} of {} tokens", index, T);
    CheckLongEnough(T);
    Rng rng(seed_, static_cast<uint64_t>(index), "sample");
    const auto begin = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(text_.size() - T)));
    Copy(begin, T, tokens);
    Copy(begin + 1, T, targets);
  }

  int64_t vocab_size() const override { return 256; }

 private:
  void Copy(int64_t begin, int64_t count, int32_t* out) const {
    text_.Read(begin, count, [&out](std::string_view piece) {
      for (const char c : piece)
        *out++ = static_cast<uint8_t>(c);
    });
  }

  MappedText text_;
  std::string name_;
  uint64_t seed_;
};

// Each token has four successors, with probabilities 1/2, 1/4, 1/8 and 1/8: a model that has learnt
// the chain has a loss of at most 1.75 ln 2 = 1.21 nats. The chain is the same for every seed.
class MarkovDataset final : public Dataset {
 public:
  MarkovDataset(int64_t vocab_size, int64_t seed)
      : vocab_size_(static_cast<uint64_t>(vocab_size)), seed_(static_cast<uint64_t>(seed)) {}

  void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const override {
    DSAT_CHECK(index >= 0 && T >= 1, "sample {} of {} tokens", index, T);
    Rng rng(seed_, static_cast<uint64_t>(index), "sample");
    uint64_t token = rng.Below(vocab_size_);
    for (int64_t t = 0; t < T; ++t) {
      tokens[t] = static_cast<int32_t>(token);
      // The number of zeros before the first one in random bits is j with probability 2^-(j + 1).
      const int successor = std::min(std::countr_zero(rng.NextU64()), 3);
      token = Successor(token, successor);
      targets[t] = static_cast<int32_t>(token);
    }
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(vocab_size_); }

 private:
  uint64_t Successor(uint64_t token, int which) const {
    Rng rng(0, 4 * token + static_cast<uint64_t>(which), "chain");
    return rng.Below(vocab_size_);
  }

  uint64_t vocab_size_;
  uint64_t seed_;
};

std::vector<std::string> PathsFrom(const JsonBlock& block) {
  const Json& value = block.At("path");
  std::vector<std::string> paths;
  for (const Json& path : value.is_array() ? value : Json::array({value})) {
    if (!path.is_string() || path.get<std::string>().empty()) {
      Throw(ErrorCode::kInvalidArgument,
            "{} is {}; expected a file, a folder or a glob pattern, or a list of them",
            block.PointerTo("path"), value.dump());
    }
    paths.push_back(path);
  }
  return paths;
}

std::unique_ptr<Dataset> OpenText(const JsonBlock& block, const std::string& base_dir,
                                  int64_t seed) {
  block.CheckKeys({"type", "path", "seq_len"});
  std::vector<std::string> files;
  for (const std::string& path : PathsFrom(block)) {
    const auto found = FindFiles(std::filesystem::path(base_dir) / path);
    files.insert(files.end(), found.begin(), found.end());
  }
  const std::string name =
      files.size() == 1 ? files[0]
                        : fmt::format("{} ({} files)", block.PointerTo("path"), files.size());
  auto dataset = std::make_unique<TextDataset>(files, name, seed);
  dataset->CheckLongEnough(block.Int("seq_len", 1, 1, std::numeric_limits<int32_t>::max()));
  return dataset;
}

}  // namespace

std::unique_ptr<Dataset> OpenDataset(const Json& data, const std::string& base_dir, int64_t seed,
                                     const std::string& what) {
  const JsonBlock block(data, what);
  if (block.Word("type", {"text", "synthetic"}) == "text") return OpenText(block, base_dir, seed);
  block.CheckKeys({"type", "seq_len", "vocab_size"});
  return std::make_unique<MarkovDataset>(block.Int("vocab_size", 256, 2, kMaxVocab), seed);
}

int64_t SeqLen(const Json& data, int64_t model_max, const std::string& what) {
  return JsonBlock(data, what).Int("seq_len", model_max, 1, model_max);
}

}  // namespace dsat::engine
