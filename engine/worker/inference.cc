// Uses of a trained model.
#include "engine/worker/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/parse_number.h"
#include "base/rng.h"

namespace dsat::engine {
namespace {

// Throws if what was printed does not reach the standard output.
void FlushOutput() {
  if (std::fflush(stdout) != 0) ThrowErrno("cannot write to standard output", errno);
}

std::vector<int32_t> TokensOf(const Model& model, const TextCodec& codec,
                              const std::string& prompt) {
  std::vector<int32_t> tokens = codec.EncodePrompt(prompt);
  const int32_t largest = tokens.empty() ? 0 : *std::ranges::max_element(tokens);
  if (largest < model.vocab_size) return tokens;
  if (!codec.tokenizer_path().empty()) {
    Throw(ErrorCode::kInvalidArgument, "the prompt has token {} of {}; the model knows {} tokens",
          largest, codec.tokenizer_path(), model.vocab_size);
  }
  Throw(ErrorCode::kInvalidArgument,
        "the prompt has byte {}; the model knows {} tokens (it was not trained on bytes)", largest,
        model.vocab_size);
}

// The tokens of a prompt for a model of other data, which is given by their numbers.
std::vector<int32_t> NumbersOf(const Model& model, const std::string& prompt) {
  std::vector<int32_t> tokens;
  std::istringstream words(prompt);
  for (std::string word; words >> word;) {
    const std::optional<int32_t> token = ParseNumber<int32_t>(word);
    if (!token || *token < 0 || *token >= model.vocab_size) {
      Throw(ErrorCode::kInvalidArgument,
            "the prompt has \"{}\"; expected numbers of tokens below {}, such as \"464 3290\": the "
            "model's data is not text; /hyperparameters/data/tokenizer can name its tokenizer.json",
            Printable(word), model.vocab_size);
    }
    tokens.push_back(*token);
  }
  return tokens;
}

std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt,
                                  const TextCodec* codec) {
  if (model.image.NumElems() > 0) {
    Throw(ErrorCode::kInvalidArgument,
          "/hyperparameters/model reads images; expected a language model");
  }
  std::vector<int32_t> tokens =
      codec != nullptr ? TokensOf(model, *codec, prompt) : NumbersOf(model, prompt);
  if (tokens.empty())
    Throw(ErrorCode::kInvalidArgument, "the prompt is empty; expected a text to continue");
  return tokens;
}

// One continuation, until `end` is drawn; `on_token` hears every new token before it.
template <typename OnToken>
void Continue(Engine& engine, const Model& model, const GenerateTask& task, uint64_t seed,
              int64_t sample, int32_t end, std::vector<int32_t>& tokens, OnToken on_token) {
  for (int64_t i = 0; i < task.max_new_tokens; ++i) {
    const int64_t T = std::min(std::ssize(tokens), model.max_seq_len);
    const Batch batch = {.B = 1, .T = T, .tokens = tokens.data() + std::ssize(tokens) - T};
    const std::vector<float> logits = engine.Predict(batch);
    const int32_t token = SampleToken(logits, task, seed, sample, i);
    if (token == end) return;
    tokens.push_back(token);
    on_token(token);
  }
}

// The `count` tokens of the largest logits, largest first.
std::vector<int32_t> MostProbable(std::span<const float> logits, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) tokens.push_back(static_cast<int32_t>(i));
  }
  const auto more = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  count = std::min(count, tokens.size());
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<int64_t>(count), tokens.end(),
                    more);
  tokens.resize(count);
  return tokens;
}

}  // namespace

void CheckValidation(const Dataset* data, int64_t seq_len) {
  if (data == nullptr) {
    Throw(
        ErrorCode::kInvalidArgument,
        "/hyperparameters/data has no \"validation\"; expected for example {{\"split\": 0.05}} or "
        "{{\"path\": \"validation.txt\"}} (docs/models.md)");
  }
  if (data->NumSamples(seq_len) < 1) {
    Throw(ErrorCode::kInvalidArgument,
          "/hyperparameters/data/validation has no sample of length {}; expected at least one",
          seq_len);
  }
}

ValidationResult Evaluate(Engine& engine, const Dataset* data, int64_t seq_len,
                          int64_t max_samples) {
  CheckValidation(data, seq_len);
  const int64_t num_samples = std::min(data->NumSamples(seq_len), max_samples);
  return {engine.EvaluateSamples(*data, num_samples), num_samples};
}

void PrintResult(const ValidationResult& result, int64_t step, bool json) {
  const double perplexity = std::exp(result.loss);
  if (json) {
    const Json line = {{"loss", result.loss},
                       {"perplexity", perplexity},
                       {"samples", result.num_samples},
                       {"step", step}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("loss {:.4f}, perplexity {:.4g}, over {} samples, after step {}\n", result.loss,
               perplexity, result.num_samples, step);
  }
  FlushOutput();
  if (!std::isfinite(result.loss))
    Throw(ErrorCode::kFailedPrecondition,
          "the loss is not finite, because the parameters of the checkpoint are not");
}

void Generate(Engine& engine, const Model& model, const GenerateTask& task, const TextCodec* codec,
              uint64_t seed, bool json) {
  const std::vector<int32_t> prompt = PromptTokens(model, task.prompt, codec);
  const bool has_end = codec != nullptr && !codec->tokenizer_path().empty();
  const int32_t end = has_end ? codec->end_of_text() : -1;
  Json samples = Json::array();
  for (int64_t sample = 0; sample < task.num_samples; ++sample) {
    std::vector<int32_t> tokens = prompt;
    if (!json) fmt::print("{}", task.prompt);
    Continue(engine, model, task, seed, sample, end, tokens, [&](int32_t token) {
      if (json) return;
      fmt::print(
          "{}", codec != nullptr ? codec->Decode(std::span(&token, 1)) : fmt::format(" {}", token));
      FlushOutput();
    });
    if (!json) fmt::print("\n");
    const auto written = std::span(tokens).subspan(prompt.size());
    samples.push_back(codec != nullptr ? Json(codec->Decode(written)) : Json(written));
  }
  if (json) {
    // A sample may end within a character.
    const Json line = {{"prompt", task.prompt}, {"samples", samples}};
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  FlushOutput();
}

int32_t SampleToken(std::span<const float> logits, const GenerateTask& task, uint64_t seed,
                    int64_t row, int64_t position) {
  DSAT_CHECK(!logits.empty() && task.temperature >= 0 && task.top_k >= 0,
             "{} logits, temperature {}, top_k {}", logits.size(), task.temperature, task.top_k);
  const bool greedy = task.temperature == 0;
  const auto top_k = task.top_k == 0 ? logits.size() : static_cast<size_t>(task.top_k);
  const std::vector<int32_t> tokens = MostProbable(logits, greedy ? 1 : top_k);
  if (tokens.empty()) {
    Throw(ErrorCode::kFailedPrecondition,
          "every logit is NaN: the parameters of the checkpoint are not finite");
  }
  const double largest = logits[static_cast<size_t>(tokens[0])];
  if (greedy || std::isinf(largest)) return tokens[0];
  std::vector<double> weights;
  for (const int32_t token : tokens) {
    const double logit = logits[static_cast<size_t>(token)];
    weights.push_back(std::exp((logit - largest) / task.temperature));
  }
  Rng rng(seed, static_cast<uint64_t>(row), "token");
  rng.Seek(static_cast<uint64_t>(position));
  double left = rng.Uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    left -= weights[i];
    if (left < 0) return tokens[i];
  }
  return tokens[0];  // Rounding used the sum up.
}

}  // namespace dsat::engine
