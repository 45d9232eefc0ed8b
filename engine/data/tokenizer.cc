// A tokenizer.json and what it does to text.
#include "engine/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"
#include "base/json_block.h"

namespace dsat::engine {
namespace {

constexpr int64_t kMaxToken = (1 << 24) - 1;
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
  if (!one.Has("type") || one.At("type") != "Sequence") return visit(one);
  const Json& blocks = one.At(list);
  if (!blocks.is_array()) Refuse(one, list, blocks, "a list");
  for (size_t i = 0; i < blocks.size(); ++i)
    visit(JsonBlock(blocks[i], fmt::format("{}/{}", one.PointerTo(list), i)));
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

// The byte of each code point below 324; -1: none. A byte has its own code point if it is printable
// Latin-1, else one from U+0100 on.
std::array<int, 324> MakeBytes() {
  std::array<int, 324> bytes;
  bytes.fill(-1);
  size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

uint64_t KeyOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

void CheckPlainBpe(const JsonBlock& block) {
  const auto require = [&](const char* key, const std::vector<Json>& accepted,
                           const char* expected) {
    const Json value = block.Has(key) ? block.At(key) : Json();
    if (std::ranges::find(accepted, value) != accepted.end()) return;
    Refuse(block, key, value, fmt::format("{}: dsat reads byte-level BPE", expected));
  };
  // GPT-2's own file has no type.
  if (block.Has("type") || !block.Has("merges")) require("type", {"BPE"}, "\"BPE\"");
  require("continuing_subword_prefix", {nullptr, ""}, "null");
  require("end_of_word_suffix", {nullptr, ""}, "null");
  require("dropout", {nullptr, 0}, "null");
  if (block.Bool("byte_fallback", false)) require("byte_fallback", {false}, "false");
}

// The bytes that a token of GPT-2's alphabet stands for, in which each byte is a printable
// character (Radford et al. 2019: "Ġ" is the space); nullopt if it has other characters.
std::optional<std::string> BytesOfToken(std::string_view token) {
  static const std::array<int, 324> bytes = MakeBytes();
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    auto code = static_cast<unsigned>(static_cast<unsigned char>(token[i]));
    if (code >= 0x80) {  // All are below U+0800, which is two bytes of UTF-8.
      if (code < 0xC0 || code >= 0xE0 || i + 1 == token.size()) return std::nullopt;
      code = (code & 0x1FU) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3FU);
    }
    if (code >= bytes.size() || bytes[code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes[code]));
  }
  return out;
}

}  // namespace

// Merges the bytes of a piece by rank (Sennrich et al. 2016). Thread-safe.
class Tokenizer::BytePairs {
 public:
  // `what` is the file and the JSON pointer of the block "model". Throws kUnimplemented for what
  // is not byte-level BPE, kInvalidArgument for a defective vocabulary or merge.
  BytePairs(const Json& model, const std::string& what) {
    const JsonBlock block(model, what);
    CheckPlainBpe(block);
    ignore_merges_ = block.Bool("ignore_merges", false);
    ReadVocab(block.At("vocab"), block.PointerTo("vocab"));
    ReadMerges(block.At("merges"), block.PointerTo("merges"));
  }

  // Appends the tokens of a piece of text. The pairs wait in a queue, lowest rank first, leftmost
  // among equals. A pair whose tokens have been merged with others meanwhile is found out by its
  // result.
  void Encode(std::string_view piece, std::vector<int32_t>& tokens) const {
    if (ignore_merges_) {
      const auto whole = tokens_.find(std::string(piece));
      if (whole != tokens_.end()) return tokens.push_back(whole->second);
    }
    struct Symbol {
      int32_t token = -1;  // -1: part of the symbol before.
      int64_t previous = -1;
      int64_t next = -1;
    };
    const auto size = std::ssize(piece);
    std::vector<Symbol> symbols(piece.size());
    for (int64_t i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(piece[static_cast<size_t>(i)]);
      symbols[static_cast<size_t>(i)] = {byte_tokens_[byte], i - 1, i + 1 < size ? i + 1 : -1};
    }
    const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    using Pair = std::tuple<int32_t, int64_t, int32_t>;  // Rank, position, result.
    std::priority_queue<Pair, std::vector<Pair>, std::greater<>> queue;
    const auto add = [&](int64_t i) {
      if (i < 0 || at(i).next < 0) return;
      const Merge* merge = FindMerge(at(i).token, at(at(i).next).token);
      if (merge != nullptr) queue.emplace(merge->rank, i, merge->token);
    };
    for (int64_t i = 0; i < size; ++i)
      add(i);
    while (!queue.empty()) {
      const auto [rank, i, token] = queue.top();
      queue.pop();
      Symbol& left = at(i);
      if (left.token < 0 || left.next < 0) continue;
      Symbol& right = at(left.next);
      const Merge* merge = FindMerge(left.token, right.token);
      if (merge == nullptr || merge->token != token) continue;
      left.token = token;
      left.next = right.next;
      right.token = -1;
      if (left.next >= 0) at(left.next).previous = i;
      add(left.previous);
      add(i);
    }
    for (int64_t i = 0; i >= 0 && i < size; i = at(i).next)
      tokens.push_back(at(i).token);
  }

  // The vocabulary: each token as the file writes it, and its number.
  const std::unordered_map<std::string, int32_t>& vocab() const { return vocab_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t token = 0;
  };

  void ReadVocab(const Json& vocab, const std::string& what) {
    if (!vocab.is_object()) {
      Throw(ErrorCode::kInvalidArgument, "{} is {}; expected an object of tokens", what,
            JsonTypeName(vocab));
    }
    std::unordered_set<int32_t> numbers;
    byte_tokens_.fill(-1);
    for (const auto& [token, number] : vocab.items()) {
      const auto id = static_cast<int32_t>(
          IntInRange(number, 0, kMaxToken, fmt::format("{}/{}", what, Printable(token))));
      if (!numbers.insert(id).second) {
        Throw(ErrorCode::kInvalidArgument,
              "{}/{} is {}, which another token has; expected each once", what, Printable(token),
              id);
      }
      vocab_.emplace(token, id);
      const std::optional<std::string> bytes = BytesOfToken(token);
      if (!bytes) continue;  // Text cannot hold it.
      tokens_.emplace(*bytes, id);
      if (bytes->size() == 1) byte_tokens_[static_cast<unsigned char>(bytes->front())] = id;
    }
    const auto missing = std::ranges::find(byte_tokens_, -1);
    if (missing != byte_tokens_.end()) {
      Throw(ErrorCode::kUnimplemented,
            "{} has no token of byte 0x{:02x}, which would be lost; expected the 256 of byte-level "
            "BPE (in tokenizers: BpeTrainer's initial_alphabet)",
            what, missing - byte_tokens_.begin());
    }
  }

  void ReadMerges(const Json& merges, const std::string& what) {
    if (!merges.is_array())
      Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list", what, JsonTypeName(merges));
    int32_t rank = 0;
    for (const Json& merge : merges) {
      const auto refuse = [&](const char* expected) {
        Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected {}", what,
              &merge - &merges.front(), merge.dump(-1, ' ', false, Json::error_handler_t::replace),
              expected);
      };
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        if (text.starts_with("#version")) continue;
        const size_t blank = text.find(' ');
        if (blank == text.npos || text.find(' ', blank + 1) != text.npos)
          refuse("two tokens with a space between");
        left = text.substr(0, blank);
        right = text.substr(blank + 1);
      } else {
        const bool is_pair =
            merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
        if (!is_pair) refuse("two tokens");
        left = merge[0];
        right = merge[1];
      }
      const auto number_of = [&](const std::string& token) {
        const std::optional<std::string> bytes = BytesOfToken(token);
        const auto found = bytes ? tokens_.find(*bytes) : tokens_.end();
        if (found == tokens_.end())
          refuse("tokens, of which both and their sum are in /model/vocab");
        return found->second;
      };
      merges_[KeyOf(number_of(left), number_of(right))] = {rank++, number_of(left + right)};
    }
  }

  const Merge* FindMerge(int32_t left, int32_t right) const {
    const auto found = merges_.find(KeyOf(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  std::unordered_map<std::string, int32_t> vocab_;
  std::unordered_map<std::string, int32_t> tokens_;  // By bytes.
  std::unordered_map<uint64_t, Merge> merges_;       // By both tokens.
  std::array<int32_t, 256> byte_tokens_{};
  bool ignore_merges_ = false;
};

Tokenizer::Tokenizer(const std::string& path) {
  const Json file = ReadJsonFile(path);
  const JsonBlock block(file, path + ": ");
  model_ = std::make_shared<const BytePairs>(block.At("model"), block.PointerTo("model"));
  for (const char* key : {"truncation", "padding"}) {
    if (!Value(file, key).is_null()) Refuse(block, key, file.at(key), "null");
  }
  if (!Value(file, "normalizer").is_null())
    ReadNormalizer(file.at("normalizer"), block.PointerTo("normalizer"));
  for (const auto& [content, token] : model_->vocab())
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
  ForEachOf(block, what, "normalizers", [&](const JsonBlock& one) {
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
  const std::unordered_map<std::string, int32_t>& vocab = model_->vocab();
  auto next = static_cast<int32_t>(vocab.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const JsonBlock block(tokens[i], fmt::format("{}/{}", what, i));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (block.Bool(key, false)) Refuse(block, key, true, "false");
    }
    const Json& content = block.At("content");
    if (!content.is_string() || content == "") Refuse(block, "content", content, "a text");
    Added added = {content, static_cast<int32_t>(block.Int("id", -1, 0, kMaxToken))};
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
  ForEachOf(block, what, "pretokenizers", [&](const JsonBlock& one) {
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
  ForEachOf(block, what, "processors", [&](const JsonBlock& one) {
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
  if (step == steps_.size()) return model_->Encode(text, tokens);
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
    const std::string normalized = normalizers_.empty() ? "" : Normalize(rest);
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
