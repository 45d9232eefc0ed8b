// From the data block of an experiment file to training and validation data.
#include "engine/data/dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_block.h"
#include "base/rng.h"
#include "engine/data/image_source.h"
#include "engine/data/mapped_text.h"
#include "engine/data/text_codec.h"
#include "engine/data/token_source.h"
#include "engine/model/from_json.h"

namespace dsat::engine {
namespace {

constexpr int64_t kMaxSamples = int64_t{1} << 40;
const std::vector<std::string> kTypes = {"text",    "jsonl", "tokens",          "synthetic",
                                         "cifar10", "idx",   "synthetic_images"};

// The finalizer of SplitMix64 (Steele et al. 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// A part of a source and its order: validation in order, once; training without end.
struct Part {
  int64_t begin = 0, end = 0;
  bool validation = false;
  bool epochs = false;  // Training reads each sample of tokens once per epoch; else at random.
  uint64_t seed = 0;
  int64_t size() const { return end - begin; }
  // Where sample `index` is among the `count` of an epoch; training has a new order in each.
  int64_t PositionOf(int64_t index, int64_t count) const {
    if (validation) return index;
    return Shuffled(index % count, count, seed, static_cast<uint64_t>(index / count));
  }
};

// Throws if so many tokens of a source cannot fill one sample of T tokens and the token after.
void CheckLongEnough(const std::string& name, const TokenSource& source, int64_t num_tokens,
                     int64_t T) {
  if (num_tokens > T) return;
  Throw(ErrorCode::kInvalidArgument, "{}: {} {}; expected at least {} for sequences of {} tokens",
        name, num_tokens, source.unit, T + 1, T);
}

class Tokens final : public Dataset {
 public:
  // `name` is for messages.
  Tokens(TokenSource source, const Part& part, std::string name)
      : source_(std::move(source)), part_(part), name_(std::move(name)) {}

  void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const override {
    DSAT_CHECK(index >= 0 && T >= 1, "sample {} of {} tokens", index, T);
    CheckLongEnough(name_, source_, part_.size(), T);
    const int64_t begin = part_.begin + OffsetOf(index, T);
    source_.copy(begin, T, tokens);
    source_.copy(begin + 1, T, targets);
    for (int64_t t = 0; t < T; ++t) {
      tokens[t] = TokenOf(tokens[t]);
      if (targets[t] < 0) targets[t] = kIgnoredTarget;
    }
  }

  int64_t size() const override { return source_.size; }
  int64_t vocab_size() const override { return source_.vocab_size; }
  int64_t NumSamples(int64_t T) const override {
    return part_.validation ? SamplesPerEpoch(T) : kEndless;
  }

 private:
  int64_t SamplesPerEpoch(int64_t T) const { return (part_.size() - 1) / T; }

  int64_t OffsetOf(int64_t index, int64_t T) const {
    if (part_.validation || part_.epochs) return part_.PositionOf(index, SamplesPerEpoch(T)) * T;
    Rng rng(part_.seed, static_cast<uint64_t>(index), "sample");
    return static_cast<int64_t>(rng.Below(static_cast<uint64_t>(part_.size() - T)));
  }

  TokenSource source_;
  Part part_;
  std::string name_;
};

// Training reads all images in a new order in every epoch.
class Images final : public Dataset {
 public:
  Images(ImageSource source, const Part& part) : source_(std::move(source)), part_(part) {}

  void Image(int64_t index, float* pixels, int32_t* target) const override {
    DSAT_CHECK(index >= 0 && index < NumSamples(1), "image {}", index);
    *target = source_.read(part_.begin + part_.PositionOf(index, part_.size()), pixels);
  }

  ImageShape image() const override { return source_.shape; }
  int64_t size() const override { return source_.size; }
  int64_t vocab_size() const override { return source_.num_classes; }
  int64_t NumSamples(int64_t) const override { return part_.validation ? part_.size() : kEndless; }

 private:
  ImageSource source_;
  Part part_;
};

// The draws from a distribution. Training and validation share none.
struct SyntheticDraws {
  int64_t seed = 0;
  int64_t num_samples = Dataset::kEndless;  // kEndless for training alone.
};

Rng RngOf(const SyntheticDraws& draws, int64_t index) {
  DSAT_CHECK(index >= 0 && index < draws.num_samples, "sample {} of {}", index, draws.num_samples);
  return {static_cast<uint64_t>(draws.seed), static_cast<uint64_t>(index),
          draws.num_samples == Dataset::kEndless ? "sample" : "validation"};
}

// Tokens of a Markov chain that is the same for every seed: each token has four successors, with
// probabilities 1/2, 1/4, 1/8 and 1/8. A model that has learned it has a loss of at most 1.75 ln 2
// = 1.21 nats.
class MarkovTokens final : public Dataset {
 public:
  MarkovTokens(int64_t vocab_size, const SyntheticDraws& draws)
      : vocab_size_(static_cast<uint64_t>(vocab_size)), draws_(draws) {}

  void Sample(int64_t index, int64_t T, int32_t* tokens, int32_t* targets) const override {
    Rng rng = RngOf(draws_, index);
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
  int64_t NumSamples(int64_t) const override { return draws_.num_samples; }

 private:
  uint64_t Successor(uint64_t token, int which) const {
    Rng rng(0, 4 * token + static_cast<uint64_t>(which), "chain");
    return rng.Below(vocab_size_);
  }

  uint64_t vocab_size_;
  SyntheticDraws draws_;
};

// Images of a pattern for each class, the same for every seed, plus noise of twice its amplitude:
// one pixel says little about the class, but the whole image determines it.
class PatternImages final : public Dataset {
 public:
  PatternImages(const ImageShape& shape, int64_t classes, const SyntheticDraws& draws)
      : shape_(shape), classes_(classes), draws_(draws) {}

  void Image(int64_t index, float* pixels, int32_t* target) const override {
    Rng rng = RngOf(draws_, index);
    *target = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(classes_)));
    Rng pattern(0, static_cast<uint64_t>(*target), "pattern");
    for (int64_t i = 0; i < shape_.NumElems(); ++i) {
      const double value = double{static_cast<float>(0.2 * pattern.Normal())} + 0.4 * rng.Normal();
      pixels[i] = static_cast<float>(std::clamp(value, -1.0, 1.0));
    }
  }

  ImageShape image() const override { return shape_; }
  int64_t vocab_size() const override { return classes_; }
  int64_t NumSamples(int64_t) const override { return draws_.num_samples; }

 private:
  ImageShape shape_;
  int64_t classes_;
  SyntheticDraws draws_;
};

// A data block, or the validation block within it with what it inherits.
struct Request {
  const Json& json;
  std::string what;
  std::string base_dir;
  int64_t seed = 0;
  bool validation = false;
  double split = 0;            // Held out of training; 0: nothing.
  std::string split_key = {};  // Its JSON pointer.
  JsonBlock block = JsonBlock(json, what);

  void CheckKeys(std::vector<std::string> keys) const {
    keys.emplace_back("type");
    if (!validation) keys.emplace_back("validation");
    block.CheckKeys(keys);
  }
  Part PartOf(int64_t size) const;
  SyntheticDraws Draws() const {
    return {
        .seed = seed,
        .num_samples = validation ? block.Int("samples", 512, 1, kMaxSamples) : Dataset::kEndless};
  }
};

Part Request::PartOf(int64_t size) const {
  const auto held_out = static_cast<int64_t>(std::floor(static_cast<double>(size) * split));
  if (split > 0 && (held_out < 1 || held_out >= size)) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; of {} it holds out {}, expected a part",
          split_key, split, size, held_out);
  }
  Part part{.begin = 0, .end = size, .validation = validation, .seed = static_cast<uint64_t>(seed)};
  if (split > 0) (validation ? part.begin : part.end) = size - held_out;
  return part;
}

std::vector<std::string> FilesFrom(const Request& request) {
  const std::string pointer = request.block.PointerTo("path");
  const Json& value = request.block.At("path");
  std::vector<std::string> files;
  for (const Json& path : value.is_array() ? value : Json::array({value})) {
    if (!path.is_string() || path == "") {
      Throw(ErrorCode::kInvalidArgument,
            "{} is {}; expected a file, a folder or a glob pattern, or a list of them", pointer,
            value.dump());
    }
    try {
      const auto found =
          FindFiles(std::filesystem::path(request.base_dir) / path.get<std::string>());
      files.insert(files.end(), found.begin(), found.end());
    } catch (const Error& error) {
      throw Error(error.code(), pointer + ": " + error.what());
    }
  }
  return files;
}

std::string FileFrom(const Request& request, const std::string& key) {
  const std::string file = PathFrom(request.block, key, request.base_dir);
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    Throw(ErrorCode::kNotFound, "{}: {}: no such file", request.block.PointerTo(key), file);
  }
  return file;
}

// Training data of tokens are drawn at random offsets, or by epochs.
bool IsByEpochs(const JsonBlock& block, const std::string& type) {
  return block.Has("sampling") ? block.Word("sampling", {"random", "epochs"}) == "epochs"
                               : type == "jsonl";
}

std::string TextKey(const JsonBlock& block) {
  if (!block.Has("text_key")) return "text";
  const Json& key = block.At("text_key");
  if (key.is_string() && key != "") return key;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected the key of the text in each line",
        block.PointerTo("text_key"), key.dump());
}

TokenSource OpenTokenSource(const Request& request, const std::string& type,
                            const std::vector<std::string>& files) {
  const JsonBlock& block = request.block;
  const auto codec = TextCodec::Open(request.json, request.base_dir, request.what);
  if (type == "tokens") {
    const int64_t fallback = codec == nullptr ? 0 : codec->vocab_size();
    const int64_t token_bytes = !block.Has("dtype")                                     ? 0
                                : block.Word("dtype", {"uint16", "uint32"}) == "uint16" ? 2
                                                                                        : 4;
    return OpenTokenFiles(files, block.Int("vocab_size", fallback, 2, kMaxVocab), token_bytes);
  }
  if (type == "text" && codec->tokenizer_path().empty()) return OpenBytes(files);
  return OpenDocuments(files, *codec, type == "jsonl" ? TextKey(block) : "");
}

std::unique_ptr<Dataset> OpenTokens(const Request& request, const std::string& type) {
  const JsonBlock& block = request.block;
  std::vector<std::string> keys = {"path", "seq_len", "sampling", "tokenizer"};
  if (block.Has("tokenizer")) keys.emplace_back("end_of_text");
  if (type == "jsonl") keys.emplace_back("text_key");
  if (type == "tokens") keys.insert(keys.end(), {"dtype", "vocab_size"});
  request.CheckKeys(keys);
  const std::vector<std::string> files = FilesFrom(request);
  std::string name = files.size() == 1
                         ? files[0]
                         : fmt::format("{} ({} files)", block.PointerTo("path"), files.size());
  TokenSource source = OpenTokenSource(request, type, files);
  const int64_t seq_len = block.Int("seq_len", 1, 1, std::numeric_limits<int32_t>::max());
  CheckLongEnough(name, source, source.size, seq_len);
  if (request.split > 0) {
    name +=
        fmt::format(": the part for {} with {} {}", request.validation ? "validation" : "training",
                    request.split_key, request.split);
  }
  Part part = request.PartOf(source.size);
  part.epochs = IsByEpochs(block, type);
  CheckLongEnough(name, source, part.size(), seq_len);
  return std::make_unique<Tokens>(std::move(source), part, name);
}

std::unique_ptr<Dataset> OpenImages(const Request& request, const std::string& type) {
  ImageSource source;
  if (type == "cifar10") {
    request.CheckKeys({"path"});
    source = OpenCifar10(FilesFrom(request));
  } else {
    request.CheckKeys({"images", "labels", "classes"});
    source = OpenIdx(FileFrom(request, "images"), FileFrom(request, "labels"),
                     request.block.Int("classes", 10, 2, 256));
  }
  if (source.size == 0) {
    Throw(ErrorCode::kInvalidArgument, "{}: no images",
          request.block.PointerTo(type == "cifar10" ? "path" : "images"));
  }
  const Part part = request.PartOf(source.size);
  return std::make_unique<Images>(std::move(source), part);
}

std::unique_ptr<Dataset> OpenSynthetic(const Request& request, const std::string& type) {
  const JsonBlock& block = request.block;
  if (request.split > 0) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; synthetic data have no part to hold out; give \"samples\" instead",
          request.split_key, request.split);
  }
  std::vector<std::string> keys =
      type == "synthetic" ? std::vector<std::string>{"seq_len", "vocab_size"}
                          : std::vector<std::string>{"image_size", "channels", "classes"};
  if (request.validation) keys.emplace_back("samples");
  request.CheckKeys(keys);
  if (type == "synthetic")
    return std::make_unique<MarkovTokens>(block.Int("vocab_size", 256, 2, kMaxVocab),
                                          request.Draws());
  const int64_t size = block.Int("image_size", 32, 1, 4096);
  return std::make_unique<PatternImages>(ImageShape{size, size, block.Int("channels", 3, 1, 1024)},
                                         block.Int("classes", 10, 2, kMaxVocab), request.Draws());
}

std::unique_ptr<Dataset> Open(const Request& request) {
  const std::string type = request.block.Word("type", kTypes);
  if (type == "text" || type == "jsonl" || type == "tokens") return OpenTokens(request, type);
  if (type == "cifar10" || type == "idx") return OpenImages(request, type);
  return OpenSynthetic(request, type);
}

// The validation block's "split", 0 if it has none.
double SplitOf(const JsonBlock& validation) {
  if (!validation.Has("split")) return 0;
  const Json& split = validation.At("split");
  if (split.is_number() && split > 0 && split < 1) return split;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a part of the data, as 0.05",
        validation.PointerTo("split"), split.dump());
}

// The validation block's keys over those of `data`, unless its type is another.
Json Inherit(const Json& data, const JsonBlock& validation) {
  const Json& own = data.at("validation");
  if (validation.Has("seq_len")) {
    Throw(ErrorCode::kInvalidArgument, "{}: validation has the seq_len of training; leave it out",
          validation.PointerTo("seq_len"));
  }
  Json merged = own;
  if (!own.contains("type") || (data.contains("type") && own.at("type") == data.at("type"))) {
    merged = data;
    merged.erase("validation");
    MergeJson(merged, own);
  }
  merged.erase("split");
  return merged;
}

}  // namespace

int64_t Shuffled(int64_t position, int64_t size, uint64_t seed, uint64_t epoch) {
  DSAT_CHECK(position >= 0 && position < size, "{} of {}", position, size);
  constexpr int kRounds = 4;
  const auto limit = static_cast<uint64_t>(size);
  const int half_bits = (std::bit_width(limit - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  Rng rng(seed, epoch, "shuffle");
  std::array<uint64_t, kRounds> keys;
  for (uint64_t& key : keys)
    key = rng.NextU64();
  auto value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (const uint64_t key : keys) {
      const uint64_t next = left ^ (Mix(right + key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= limit);
  return static_cast<int64_t>(value);
}

void Dataset::Sample(int64_t, int64_t, int32_t*, int32_t*) const {
  DSAT_CHECK(false, "images have no tokens");
}

void Dataset::Image(int64_t, float*, int32_t*) const {
  DSAT_CHECK(false, "tokens have no images");
}

std::unique_ptr<Dataset> OpenDataset(const Json& data, const std::string& base_dir, int64_t seed,
                                     const std::string& what) {
  Request request{.json = data, .what = what, .base_dir = base_dir, .seed = seed};
  if (request.block.Has("validation")) {
    const JsonBlock validation(data.at("validation"), request.block.PointerTo("validation"));
    request.split = SplitOf(validation);
    request.split_key = validation.PointerTo("split");
  }
  return Open(request);
}

std::unique_ptr<Dataset> OpenValidationDataset(const Json& data, const std::string& base_dir,
                                               int64_t seed, const std::string& what) {
  const JsonBlock block(data, what);
  if (!block.Has("validation")) return nullptr;
  const JsonBlock validation(data.at("validation"), block.PointerTo("validation"));
  const double split = SplitOf(validation);
  const bool has_files =
      validation.Has("path") || validation.Has("images") || validation.Has("labels");
  const Json merged = Inherit(data, validation);
  const bool made_up = merged.value("type", Json()) == "synthetic" ||
                       merged.value("type", Json()) == "synthetic_images";
  if (!made_up && has_files == (split > 0)) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is {}; expected either other files or \"split\", the part to hold out, as 0.05",
          block.PointerTo("validation"), data.at("validation").dump());
  }
  return Open({.json = merged,
               .what = block.PointerTo("validation"),
               .base_dir = base_dir,
               .seed = seed,
               .validation = true,
               .split = split,
               .split_key = validation.PointerTo("split")});
}

int64_t SeqLen(const Json& data, int64_t model_max, const std::string& what) {
  return JsonBlock(data, what).Int("seq_len", model_max, 1, model_max);
}

}  // namespace dsat::engine
