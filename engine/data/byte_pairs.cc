// Byte-level BPE as GPT-2 and Llama 3 use it.
#include "engine/data/byte_pairs.h"

#include <algorithm>
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
    Throw(ErrorCode::kUnimplemented,
          "{} is {}; expected {}: dsat reads byte-level BPE; tokenize the data with the package "
          "tokenizers and train on the files of tokens (\"type\": \"tokens\")",
          block.PointerTo(key), value.dump(), expected);
  };
  // GPT-2's own file has no type.
  if (block.Has("type") || !block.Has("merges")) require("type", {"BPE"}, "\"BPE\"");
  require("continuing_subword_prefix", {nullptr, ""}, "null");
  require("end_of_word_suffix", {nullptr, ""}, "null");
  require("dropout", {nullptr, 0}, "null");
  if (block.Bool("byte_fallback", false)) require("byte_fallback", {false}, "false");
}

}  // namespace

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

BytePairs::BytePairs(const Json& model, const std::string& what) {
  const JsonBlock block(model, what);
  CheckPlainBpe(block);
  ignore_merges_ = block.Bool("ignore_merges", false);
  ReadVocab(block.At("vocab"), block.PointerTo("vocab"));
  ReadMerges(block.At("merges"), block.PointerTo("merges"));
}

void BytePairs::ReadVocab(const Json& vocab, const std::string& what) {
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
      Throw(ErrorCode::kInvalidArgument, "{}/{} is {}, which another token has; expected each once",
            what, Printable(token), id);
    }
    vocab_.emplace_back(token, id);
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

void BytePairs::ReadMerges(const Json& merges, const std::string& what) {
  if (!merges.is_array())
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list", what, JsonTypeName(merges));
  int32_t rank = 0;
  for (const Json& merge : merges) {
    const auto refuse = [&](const char* expected) {
      Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected {}", what, &merge - &merges.front(),
            merge.dump(-1, ' ', false, Json::error_handler_t::replace), expected);
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
      if (found == tokens_.end()) refuse("tokens, of which both and their sum are in /model/vocab");
      return found->second;
    };
    merges_[KeyOf(number_of(left), number_of(right))] = {rank++, number_of(left + right)};
  }
}

const BytePairs::Merge* BytePairs::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(KeyOf(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// The pairs wait in a queue, lowest rank first, leftmost among equals. A pair whose tokens have
// been merged with others meanwhile is found out by its result.
void BytePairs::Encode(std::string_view piece, std::vector<int32_t>& tokens) const {
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

}  // namespace dsat::engine
