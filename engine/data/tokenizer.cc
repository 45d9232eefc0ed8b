// A tokenizer.json and what it does to text.
#include "engine/data/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "base/json_block.h"

namespace dsat::engine {
namespace {

// GPT-2's pattern, which a ByteLevel pre-tokenizer has within it.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void Refuse(const JsonBlock& block, const std::string& key, const Json& value,
                         const std::string& expected) {
  Throw(ErrorCode::kUnimplemented,
        "{} is {}; expected {}; tokenize the data with the package tokenizers and train on the "
        "files of tokens (\"type\": \"tokens\")",
        block.PointerTo(key), Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)),
        expected);
}

const Json& Value(const Json& object, const char* key) {
  static const Json null;
  return object.contains(key) ? object.at(key) : null;
}

// The blocks of a "Sequence", or the one block.
template <typename Visit>
void ForEachOf(const Json& block, const std::string& what, const char* list, const Visit& visit) {
  const JsonBlock one(block, what);
  if (!one.Has("type") || one.At("type") != "Sequence") return visit(block, what);
  const Json& blocks = one.At(list);
  if (!blocks.is_array()) Refuse(one, list, blocks, "a list");
  for (size_t i = 0; i < blocks.size(); ++i)
    visit(blocks[i], fmt::format("{}/{}", one.PointerTo(list), i));
}

// Adds a pattern of type Split, {"Regex": "..."} or {"String": "..."}.
TextSplitter SplitterOf(const JsonBlock& block) {
  using Keep = TextSplitter::Keep;
  const Json& pattern = block.At("pattern");
  const Json& behavior = block.At("behavior");
  if (behavior != "Isolated" && behavior != "Removed")
    Refuse(block, "behavior", behavior, "\"Isolated\" or \"Removed\"");
  const Keep keep = behavior == "Isolated"        ? Keep::kAll
                    : block.Bool("invert", false) ? Keep::kMatches
                                                  : Keep::kRest;
  if (Value(pattern, "Regex").is_string())
    return TextSplitter::OfRegex(pattern.at("Regex"), keep, block.PointerTo("pattern/Regex"));
  if (Value(pattern, "String").is_string() && pattern.at("String") != "")
    return TextSplitter::OfString(pattern.at("String"), keep, block.PointerTo("pattern/String"));
  Refuse(block, "pattern", pattern, "an object with \"Regex\" or \"String\"");
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path) : Tokenizer(path, ReadJsonFile(path)) {}

Tokenizer::Tokenizer(const std::string& path, const Json& file)
    : model_(JsonBlock(file, path + ": ").At("model"), path + ": /model") {
  const JsonBlock block(file, path + ": ");
  for (const char* key : {"truncation", "padding"}) {
    if (!Value(file, key).is_null()) Refuse(block, key, file.at(key), "null");
  }
  if (!Value(file, "normalizer").is_null())
    ReadNormalizer(file.at("normalizer"), block.PointerTo("normalizer"));
  for (const auto& [content, token] : model_.vocab())
    SetContent(token, content);
  ReadAddedTokens(Value(file, "added_tokens"), block.PointerTo("added_tokens"));
  ReadPreTokenizer(block.At("pre_tokenizer"), block.PointerTo("pre_tokenizer"));
  if (!Value(file, "post_processor").is_null())
    ReadPostProcessor(file.at("post_processor"), block.PointerTo("post_processor"));
  const Json& decoder = block.At("decoder");
  if (!decoder.is_object() || Value(decoder, "type") != "ByteLevel")
    Refuse(block, "decoder", decoder, "the type ByteLevel");
}

void Tokenizer::ReadNormalizer(const Json& block, const std::string& what) {
  ForEachOf(block, what, "normalizers", [&](const Json& element, const std::string& pointer) {
    const JsonBlock one(element, pointer);
    const Json& type = one.At("type");
    const auto form = TextNormalizer::OfName(type.is_string() ? std::string(type) : "");
    if (!form) Refuse(one, "type", type, "NFC, NFD, NFKC, NFKD or a Sequence of them");
    normalizers_.push_back(*form);
  });
}

std::string Tokenizer::Normalize(std::string_view text) const {
  std::string normalized(text);
  for (const TextNormalizer& normalizer : normalizers_)
    normalized = normalizer.Normalize(normalized);
  return normalized;
}

void Tokenizer::SetContent(int32_t token, const std::string& content) {
  const auto index = static_cast<size_t>(token);
  if (index >= contents_.size()) contents_.resize(index + 1);
  contents_[index] = BytesOfToken(content).value_or(content);
}

// A token that the vocabulary lacks gets the next number, as in `tokenizers`.
void Tokenizer::ReadAddedTokens(const Json& tokens, const std::string& what) {
  if (!tokens.is_array() && !tokens.is_null())
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list", what, JsonTypeName(tokens));
  const std::unordered_map<std::string, int32_t> vocab(model_.vocab().begin(),
                                                       model_.vocab().end());
  auto next = static_cast<int32_t>(vocab.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const JsonBlock block(tokens[i], fmt::format("{}/{}", what, i));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (block.Bool(key, false)) Refuse(block, key, true, "false");
    }
    const Json& content = block.At("content");
    if (!content.is_string() || content == "") Refuse(block, "content", content, "a text");
    Added added = {content, static_cast<int32_t>(block.Int("id", -1, 0, (1 << 24) - 1))};
    const auto known = vocab.find(added.content);
    const int32_t expected = known == vocab.end() ? next++ : known->second;
    if (!added_tokens_.emplace(added.content, added.token).second)
      Refuse(block, "content", content, "each token once");
    if (added.token != expected)
      Refuse(block, "id", added.token, fmt::format("{}, as tokenizers numbers it", expected));
    const bool is_normalized = block.Bool("normalized", false);  // As the text that it is part of.
    if (is_normalized) added.content = Normalize(added.content);
    auto& group = is_normalized ? added_normalized_ : added_;
    group[added.content.front()].push_back(added);
    SetContent(added.token, added.content);
  }
  for (AddedByByte* group : {&added_, &added_normalized_}) {
    for (auto& [byte, list] : *group) {
      std::ranges::sort(list, std::ranges::greater(),
                        [](const Added& added) { return added.content.size(); });
    }
  }
}

void Tokenizer::ReadPreTokenizer(const Json& block, const std::string& what) {
  bool is_byte_level = false;
  ForEachOf(block, what, "pretokenizers", [&](const Json& element, const std::string& pointer) {
    const JsonBlock one(element, pointer);
    const Json& type = one.At("type");
    if (is_byte_level) Refuse(one, "type", type, "nothing after ByteLevel");
    if (type == "ByteLevel") {
      is_byte_level = true;
      Step step{.splitter = {}, .add_prefix_space = one.Bool("add_prefix_space", true)};
      if (one.Bool("use_regex", true)) {
        step.splitter = TextSplitter::OfRegex(kByteLevelPattern, TextSplitter::Keep::kAll,
                                              one.PointerTo("use_regex"));
      }
      steps_.push_back(step);
    } else if (type == "Split") {
      steps_.push_back({.splitter = SplitterOf(one)});
    } else if (type == "Digits") {
      const char* pattern = one.Bool("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)";
      steps_.push_back({.splitter = TextSplitter::OfRegex(pattern, TextSplitter::Keep::kAll,
                                                          one.PointerTo("individual_digits"))});
    } else {
      Refuse(one, "type", type, "ByteLevel, Split, Digits or a Sequence of them");
    }
  });
  if (is_byte_level) return;
  Throw(ErrorCode::kUnimplemented, "{} has no element of type ByteLevel; expected one at the end",
        what);
}

void Tokenizer::ReadPostProcessor(const Json& block, const std::string& what) {
  ForEachOf(block, what, "processors", [&](const Json& element, const std::string& pointer) {
    const JsonBlock one(element, pointer);
    if (one.At("type") == "ByteLevel") return;  // It concerns offsets only.
    if (one.At("type") != "TemplateProcessing")
      Refuse(one, "type", one.At("type"), "ByteLevel, TemplateProcessing or a Sequence of them");
    const Json& single = one.At("single");
    std::vector<int32_t> begin, end;
    int num_texts = 0;
    for (const Json& item : single) {
      if (item.is_object() && item.contains("Sequence")) {
        ++num_texts;
        continue;
      }
      const Json& id = Value(Value(item, "SpecialToken"), "id");
      if (!id.is_string()) Refuse(one, "single", single, "special tokens and one sequence");
      const JsonBlock tokens(one.At("special_tokens"), one.PointerTo("special_tokens"));
      const JsonBlock entry(tokens.At(id), tokens.PointerTo(std::string(id)));
      for (const Json& token : entry.At("ids")) {
        (num_texts == 0 ? begin : end)
            .push_back(static_cast<int32_t>(
                IntInRange(token, 0, vocab_size() - 1, entry.PointerTo("ids"))));
      }
    }
    if (num_texts != 1) Refuse(one, "single", single, "special tokens and one sequence");
    begin_.insert(begin_.begin(), begin.begin(), begin.end());
    end_.insert(end_.end(), end.begin(), end.end());
  });
}

// The leftmost token comes first, and of those at one place the longest.
template <typename OnText>
void Tokenizer::EncodeAdded(const AddedByByte& added, std::string_view text,
                            std::vector<int32_t>& tokens, const OnText& on_text) {
  size_t begin = 0;
  for (size_t at = 0; !added.empty() && at < text.size();) {
    const auto candidates = added.find(text[at]);
    const Added* found = nullptr;
    if (candidates != added.end()) {
      const auto match = std::ranges::find_if(candidates->second, [&](const Added& candidate) {
        return text.substr(at).starts_with(candidate.content);
      });
      if (match != candidates->second.end()) found = &*match;
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (begin < at) on_text(text.substr(begin, at - begin));
    tokens.push_back(found->token);
    begin = at += found->content.size();
  }
  if (begin < text.size()) on_text(text.substr(begin));
}

void Tokenizer::EncodeFrom(size_t step, std::string_view text, std::vector<int32_t>& tokens) const {
  if (step == steps_.size()) return model_.Encode(text, tokens);
  const auto& [splitter, add_prefix_space] = steps_[step];
  std::string with_space;
  if (add_prefix_space && !text.starts_with(' ')) text = with_space = fmt::format(" {}", text);
  if (!splitter) return EncodeFrom(step + 1, text, tokens);
  splitter->Split(text, [&](std::string_view piece) { EncodeFrom(step + 1, piece, tokens); });
}

std::vector<int32_t> Tokenizer::EncodeBeginning(std::string_view text) const {
  CheckUtf8(text);
  std::vector<int32_t> tokens = begin_;
  EncodeAdded(added_, text, tokens, [&](std::string_view rest) {
    const std::string normalized = normalizers_.empty() ? std::string() : Normalize(rest);
    EncodeAdded(added_normalized_, normalizers_.empty() ? rest : normalized, tokens,
                [&](std::string_view plain) { EncodeFrom(0, plain, tokens); });
  });
  return tokens;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> tokens = EncodeBeginning(text);
  tokens.insert(tokens.end(), end_.begin(), end_.end());
  return tokens;
}

std::string Tokenizer::Decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab_size()) text += contents_[static_cast<size_t>(token)];
  }
  return text;
}

std::optional<int32_t> Tokenizer::AddedToken(const std::string& content) const {
  const auto found = added_tokens_.find(content);
  return found == added_tokens_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace dsat::engine
