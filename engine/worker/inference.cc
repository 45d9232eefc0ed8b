// What a trained model is for.
#include "engine/worker/inference.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <sstream>
#include <vector>

#include "base/files.h"
#include "engine/runtime/sampling.h"

namespace dsat::engine {
namespace {

// The tokens of a text are its bytes.
std::vector<int32_t> BytesOf(const Model& model, const std::string& prompt) {
  std::vector<int32_t> tokens = BytesToTokens(prompt);
  const int32_t largest = tokens.empty() ? 0 : *std::ranges::max_element(tokens);
  if (largest >= model.vocab_size) {
    Throw(ErrorCode::kInvalidArgument,
          "the prompt has byte {}; the model knows {} tokens (it was not trained on bytes)",
          largest, model.vocab_size);
  }
  return tokens;
}

// Those of other data are given by their numbers.
std::vector<int32_t> NumbersOf(const Model& model, const std::string& prompt) {
  std::vector<int32_t> tokens;
  std::istringstream words(prompt);
  for (std::string word; words >> word;) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size() || token < 0 ||
        token >= model.vocab_size) {
      Throw(ErrorCode::kInvalidArgument,
            "the prompt has \"{}\"; expected numbers of tokens below {}, such as \"464 3290\": the "
            "model's data is not text, and its tokenizer has the words",
            Printable(word), model.vocab_size);
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<int32_t> PromptTokens(const Model& model, const std::string& prompt, bool is_text) {
  if (model.image.NumElems() > 0) {
    Throw(ErrorCode::kInvalidArgument,
          "/hyperparameters/model reads images; expected a language model");
  }
  std::vector<int32_t> tokens = is_text ? BytesOf(model, prompt) : NumbersOf(model, prompt);
  if (tokens.empty())
    Throw(ErrorCode::kInvalidArgument, "the prompt is empty; expected a text to continue");
  return tokens;
}

// One continuation; `on_token` hears every new token.
template <typename OnToken>
void Continue(Engine& engine, const Model& model, const GenerateTask& task, uint64_t seed,
              int64_t sample, std::vector<int32_t>& tokens, OnToken on_token) {
  const SamplingOptions options = {
      .temperature = task.temperature, .top_k = task.top_k, .seed = seed};
  for (int64_t i = 0; i < task.max_new_tokens; ++i) {
    const int64_t T = std::min(std::ssize(tokens), model.max_seq_len);
    const Batch batch = {.B = 1, .T = T, .tokens = tokens.data() + std::ssize(tokens) - T};
    const std::vector<float> logits = engine.Predict(batch);
    tokens.push_back(SampleToken(logits, options, sample, i));
    on_token(tokens.back());
  }
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

void PrintResult(const ValidationResult& result, int64_t step) {
  const Json line = {{"loss", result.loss},
                     {"perplexity", std::exp(result.loss)},
                     {"samples", result.num_samples},
                     {"step", step}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void Generate(Engine& engine, const Model& model, const GenerateTask& task, bool is_text,
              uint64_t seed) {
  const std::vector<int32_t> prompt = PromptTokens(model, task.prompt, is_text);
  Json samples = Json::array();
  for (int64_t sample = 0; sample < task.num_samples; ++sample) {
    std::vector<int32_t> tokens = prompt;
    if (!task.json) fmt::print("{}", task.prompt);
    Continue(engine, model, task, seed, sample, tokens, [&](int32_t token) {
      if (task.json) return;
      fmt::print("{}", is_text ? TokensToBytes(std::span(&token, 1)) : fmt::format(" {}", token));
      std::fflush(stdout);
    });
    if (!task.json) fmt::print("\n");
    const auto written = std::span(tokens).subspan(prompt.size());
    samples.push_back(is_text ? Json(TokensToBytes(written)) : Json(written));
  }
  if (!task.json) return;
  // A sample may end within a character.
  const Json line = {{"prompt", task.prompt}, {"samples", samples}};
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace dsat::engine
