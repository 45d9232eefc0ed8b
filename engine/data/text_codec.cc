// Text as tokens of a data block.
#include "engine/data/text_codec.h"

#include "base/error.h"
#include "base/json_block.h"
#include "engine/model/from_json.h"

namespace dsat::engine {
namespace {

// The token between documents: the one that the block names, or the usual one of GPT-2 or Llama 3.
int32_t EndOfText(const Tokenizer& tokenizer, const JsonBlock& block, const std::string& path) {
  std::vector<std::string> candidates = {"<|endoftext|>", "<|end_of_text|>"};
  if (block.Has("end_of_text")) {
    const Json& name = block.At("end_of_text");
    candidates = {name.is_string() ? name.get<std::string>() : ""};
  }
  for (const std::string& candidate : candidates) {
    if (const auto token = tokenizer.AddedToken(candidate)) return *token;
  }
  Throw(ErrorCode::kInvalidArgument,
        "{} is {}; expected the token that ends a document, one of /added_tokens of {}",
        block.PointerTo("end_of_text"),
        block.Has("end_of_text") ? block.At("end_of_text").dump() : "missing", path);
}

}  // namespace

std::unique_ptr<TextCodec> TextCodec::Open(const Json& data, const std::string& base_dir,
                                           const std::string& what) {
  const JsonBlock block(data, what);
  const Json& type = block.At("type");
  if (!block.Has("tokenizer") && type != "text" && type != "jsonl") return nullptr;
  auto codec = std::make_unique<TextCodec>();
  if (!block.Has("tokenizer")) return codec;
  const std::string path = PathFrom(block, "tokenizer", base_dir, "a tokenizer.json");
  codec->tokenizer_path_ = path;
  try {
    codec->tokenizer_.emplace(path);
  } catch (const Error& error) {
    throw Error(error.code(), block.PointerTo("tokenizer") + ": " + error.what());
  }
  codec->end_of_text_ = EndOfText(*codec->tokenizer_, block, path);
  return codec;
}

std::vector<int32_t> TextCodec::Encode(std::string_view text) const {
  return tokenizer_ ? tokenizer_->Encode(text) : EncodePrompt(text);
}

std::vector<int32_t> TextCodec::EncodePrompt(std::string_view text) const {
  if (tokenizer_) return tokenizer_->EncodeBeginning(text);
  std::vector<int32_t> tokens;
  for (const char c : text)
    tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string TextCodec::Decode(std::span<const int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->Decode(tokens);
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0 && token < 256) {
      text.push_back(static_cast<char>(token));
    } else {
      text += fmt::format("\\u{{{}}}", token);
    }
  }
  return text;
}

}  // namespace dsat::engine
