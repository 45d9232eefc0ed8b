// Tokenizers and documents: what is refused, how documents are packed, epochs, and kept tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "engine/data/dataset.h"
#include "engine/data/text_codec.h"
#include "engine/data/text_splitter.h"
#include "tests/engine/data/data_folder.h"
#include "tests/engine/data/small_tokenizer.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

Json WithBegin(Json tokenizer) {
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "B"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"B", {{"id", "B"}, {"ids", {257}}}}}}};
  return tokenizer;
}

class DocumentsTest : public DataFolderTest {
 protected:
  DocumentsTest() {
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
    Write("tokenizer.json", SmallTokenizer().dump());
  }
  ~DocumentsTest() override { unsetenv("XDG_CACHE_HOME"); }

  // All tokens, as the validation data have them in order.
  std::vector<int32_t> All(Json json, int64_t count) const {
    const Json path = json.at("path");
    json["validation"] = {{"path", path}};
    std::vector<int32_t> tokens(static_cast<size_t>(count)), targets(tokens.size());
    const auto dataset = OpenValidationDataset(json, folder_.path(), 1, "/data");
    EXPECT_EQ(dataset->NumSamples(count - 1), 1);
    EXPECT_EQ(dataset->NumSamples(count), 0);
    dataset->Sample(0, count - 1, tokens.data(), targets.data());
    tokens.back() = targets[tokens.size() - 2];
    return tokens;
  }
  void ExpectTokenizerRefused(const std::string& pointer, const Json& value,
                              const std::string& message) const {
    Json tokenizer = SmallTokenizer();
    tokenizer[Json::json_pointer(pointer)] = value;
    Write("bad.json", tokenizer.dump());
    const std::string path = folder_ / "bad.json";
    ExpectRefused([&] { (void)Tokenizer(path); }, path + ": " + message);
  }
};

// ---- Tokenizers. ----

TEST_F(DocumentsTest, TokenizersMergeAndDecode) {
  const Tokenizer tokenizer(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_THAT(tokenizer.Encode("abb <|endoftext|>"), ElementsAre(256, 'b', ' ', 258));
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{256, 0xC3, 0xA4, 258, 999, -1}),
            "abä<|endoftext|>");
}

TEST_F(DocumentsTest, PromptsHaveWhatComesBeforeATextAndNotWhatComesAfter) {
  Json file = WithBegin(SmallTokenizer());
  file["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "B"}}}});
  Write("begin.json", file.dump());
  const Tokenizer tokenizer(folder_ / "begin.json");
  EXPECT_THAT(tokenizer.Encode("a"), ElementsAre(257, 'a', 257));
  EXPECT_THAT(tokenizer.EncodeBeginning("a"), ElementsAre(257, 'a'));
}

TEST_F(DocumentsTest, TokenizersOfOtherKindsAreRefusedByKeyAndValue) {
  const auto refused = [&](const char* pointer, const Json& value, const std::string& message) {
    ExpectTokenizerRefused(pointer, value, message);
  };
  refused("/model/type", "Unigram", "/model/type is \"Unigram\"; expected \"BPE\"");
  refused("/model/type", "WordPiece", "/model/type is \"WordPiece\"; expected \"BPE\"");
  refused("/model/byte_fallback", true, "/model/byte_fallback is true; expected false");
  refused("/model/dropout", 0.1, "/model/dropout is 0.1; expected null");
  refused("/model/continuing_subword_prefix", "##", "/model/continuing_subword_prefix is \"##\"");
  refused("/model/end_of_word_suffix", "</w>", "/model/end_of_word_suffix is \"</w>\"");
  refused("/normalizer", {{"type", "Lowercase"}},
          "/normalizer/type is \"Lowercase\"; expected NFC, NFD, NFKC, NFKD or");
  refused("/truncation", {{"max_length", 5}}, "/truncation is {\"max_length\":5}; expected null");
  refused("/pre_tokenizer/type", "Metaspace", "/pre_tokenizer/type is \"Metaspace\"; expected");
  refused("/pre_tokenizer", {{"type", "Digits"}},
          "/pre_tokenizer has no element of type ByteLevel");
  refused("/post_processor", {{"type", "BertProcessing"}},
          "/post_processor/type is \"BertProcessing\"");
  refused("/decoder/type", "WordPiece", "/decoder is {\"type\":\"WordPiece\"}");
  refused("/added_tokens/0/lstrip", true, "/added_tokens/0/lstrip is true; expected false");
  refused("/added_tokens/1/id", 260, "/added_tokens/1/id is 260; expected 258");
}

TEST_F(DocumentsTest, MistakesInTokenizersAreNamed) {
  const auto refused = [&](const char* pointer, const Json& value, const std::string& message) {
    ExpectTokenizerRefused(pointer, value, message);
  };
  refused("/model/vocab/ab", 7, "/model/vocab/");
  refused("/model/vocab/ab", -1, "/model/vocab/ab is -1; expected a whole number");
  refused("/model/vocab", {{"a", 0}}, "/model/vocab has no token of byte 0x00");
  refused("/model/merges", {"a b", "b c"}, "/model/merges/1 is \"b c\"; expected tokens");
  refused("/model/merges", {"ab"}, "/model/merges/0 is \"ab\"; expected two tokens with a space");
  refused("/added_tokens", "x", "/added_tokens is a string; expected a list");
  Json beyond = WithBegin(SmallTokenizer()).at("post_processor");
  beyond["special_tokens"]["B"]["ids"] = {259};
  refused("/post_processor", beyond,
          "/post_processor/special_tokens/B/ids is 259; expected a whole");
  refused("/model/merges", {{"a"}}, "/model/merges/0 is [\"a\"]; expected two tokens");
}

TEST_F(DocumentsTest, PatternsThatTwoEnginesReadDifferentlyAreRefused) {
  const auto split = [](const std::string& pattern) {
    (void)TextSplitter::OfRegex(pattern, TextSplitter::Keep::kAll, "f: /pattern");
  };
  for (const char* pattern :
       {R"(\w+)", R"(a\b)", "^a", "a$", R"([\S])", "[a[b]]", "[a&&b]", "(?<=a)b", "(?m:.)",
        R"(\p{Han}+)", "a{2}+", "a{,3}", R"(\h)", "[]a]", "(*UTF)a"})
    ExpectRefused([&] { split(pattern); }, "f: /pattern is ");
  ExpectRefused([&] { split("(a"); }, "which is no pattern: missing closing parenthesis");
  ExpectRefused([&] { split("a*"); }, "which matches the empty string");
  EXPECT_NO_THROW(split(R"((?i:[\s\d^a-z\]]+(?=x)(?!y))|\p{^Lu}\P{L}{1,3}|(?:\.|\S)+)"));
}

TEST_F(DocumentsTest, TextThatIsNotUtf8IsRefusedByLine) {
  const Tokenizer tokenizer(folder_ / "tokenizer.json");
  for (const std::string bad : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                "\xe0\x80\x80", "\xf0\x80\x80\x80", "\x80", "\xe2\x82"})
    ExpectRefused([&] { (void)tokenizer.Encode("ä\nb" + bad); }, "line 2: byte 0x");
  for (const char* good : {"\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80", "\xc2\x80"})
    EXPECT_NO_THROW((void)tokenizer.Encode(good));
}

// ---- Documents. ----

TEST_F(DocumentsTest, DocumentsArePackedWithATokenBehindEach) {
  Write("a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"\", \"id\": 1}\r\n{\"text\": \"c\\n\"}");
  Write("b.jsonl", "{\"text\": \"d\"}\n");
  const Json json = {{"type", "jsonl"}, {"path", "*.jsonl"}, {"tokenizer", "tokenizer.json"}};
  EXPECT_THAT(All(json, 7), ElementsAre(256, 258, 'c', '\n', 258, 'd', 258));
  EXPECT_EQ(Open(json)->vocab_size(), 259);
  Json bytes = json;
  bytes.erase("tokenizer");
  EXPECT_THAT(All(bytes, 8), ElementsAre('a', 'b', 0, 'c', '\n', 0, 'd', 0));
  Write("tokenizer.json", WithBegin(SmallTokenizer()).dump());
  Json named = json;
  named["end_of_text"] = "<|begin|>";
  EXPECT_THAT(All(named, 10), ElementsAre(257, 256, 257, 257, 'c', '\n', 257, 257, 'd', 257));
}

TEST_F(DocumentsTest, TheTokensOfPromptsAreNoTargets) {
  Write("tokenizer.json", WithBegin(SmallTokenizer()).dump());
  Write("a.jsonl",
        "{\"prompt\": \"xy\", \"completion\": \"ab\"}\n{\"text\": \"c\"}\n"
        "{\"prompt\": \"\", \"completion\": \"d\"}\n"
        "{\"prompt\": \"za\", \"completion\": \"b\"}\n");
  const Json json = {{"type", "jsonl"},
                     {"path", "a.jsonl"},
                     {"tokenizer", "tokenizer.json"},
                     {"validation", {{"path", "a.jsonl"}}}};
  constexpr int32_t kNone = kIgnoredTarget;
  for (int read = 0; read < 2; ++read) {  // Computed, and kept.
    std::vector<int32_t> tokens(14), targets(14);
    OpenValidationDataset(json, folder_.path(), 1, "/data")
        ->Sample(0, 14, tokens.data(), targets.data());
    EXPECT_THAT(tokens,
                ElementsAre(257, 'x', 'y', 256, 258, 257, 'c', 258, 257, 'd', 258, 257, 'z', 256));
    // "a" of the last prompt is a part of the token "ab", which is predicted.
    EXPECT_THAT(targets, ElementsAre(kNone, kNone, 256, 258, 257, 'c', 258, 257, 'd', 258, kNone,
                                     kNone, 256, 258));
  }
  Write("a.jsonl", "{\"prompt\": \"xy\"}");
  ExpectRefused([&] { (void)Open(json); },
                "a.jsonl:1: expected a JSON object with a string at \"text\" (\"text_key\" names "
                "another key), or with strings at \"prompt\" and \"completion\"");
}

TEST_F(DocumentsTest, FilesOfTextAreDocumentsWithATokenizer) {
  Write("a.txt", "ab");
  Write("b.txt", "a\n");
  const Json json = {{"type", "text"}, {"path", "?.txt"}, {"tokenizer", "tokenizer.json"}};
  EXPECT_THAT(All(json, 5), ElementsAre(256, 258, 'a', '\n', 258));
}

TEST_F(DocumentsTest, TokensAreKeptUntilAFileChanges) {
  Write("a.jsonl", "{\"body\": \"abab\"}");
  const Json json = {{"type", "jsonl"},
                     {"path", "a.jsonl"},
                     {"tokenizer", "tokenizer.json"},
                     {"text_key", "body"}};
  EXPECT_THAT(All(json, 3), ElementsAre(256, 256, 258));
  std::vector<fs::path> kept(fs::directory_iterator(folder_ / "cache/dsat"), {});
  ASSERT_EQ(kept.size(), 1U);
  const auto inode = [&] {
    struct stat info {};
    EXPECT_EQ(stat(kept[0].c_str(), &info), 0);
    return info.st_ino;
  };
  const ino_t first = inode();
  EXPECT_THAT(All(json, 3), ElementsAre(256, 256, 258));
  EXPECT_EQ(inode(), first);  // The file was read, not written again.
  Write("a.jsonl", "{\"body\": \"abc\"}");
  EXPECT_THAT(All(json, 3), ElementsAre(256, 'c', 258));
  Write("tokenizer.json", WithBegin(SmallTokenizer()).dump());
  EXPECT_THAT(All(json, 4), ElementsAre(257, 256, 'c', 258));
  fs::remove_all(folder_ / "cache");
  Write("cache", "a file in place of the folder");
  EXPECT_THAT(All(json, 4), ElementsAre(257, 256, 'c', 258));
}

TEST_F(DocumentsTest, KeptTokensThatWereDamagedAreComputedAgain) {
  Write("a.jsonl", "{\"text\": \"ababc\"}");
  const Json json = {{"type", "jsonl"}, {"path", "a.jsonl"}, {"tokenizer", "tokenizer.json"}};
  EXPECT_THAT(All(json, 4), ElementsAre(256, 256, 'c', 258));
  const fs::path kept = *fs::directory_iterator(folder_ / "cache/dsat");
  const std::string name = fs::relative(kept, folder_.path()), whole = ReadFile(kept);
  std::string other_token = whole, other_header = whole;
  other_token[whole.size() - 8] ^= 1;
  other_header[0] ^= 1;
  for (const std::string& damaged :
       {std::string(), whole.substr(0, 100), whole.substr(0, 1024),
        whole.substr(0, whole.size() - 4), whole + "1234", other_token, other_header}) {
    Write(name, damaged);
    testing::internal::CaptureStderr();
    EXPECT_THAT(All(json, 4), ElementsAre(256, 256, 'c', 258));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("kept tokens cannot be used and are computed again"));
    EXPECT_THAT(log, HasSubstr(kept.string() + ": was altered or cut short"));
    EXPECT_EQ(ReadFile(kept), whole);
  }
}

TEST_F(DocumentsTest, TokensThatNoRunHasReadForAMonthAreRemoved) {
  const fs::path cache = folder_ / "cache/dsat";
  const Json json = {{"type", "jsonl"}, {"path", "a.jsonl"}, {"tokenizer", "tokenizer.json"}};
  const auto age = [](const fs::path& path, int num_days) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::days(num_days));
  };
  Write("a.jsonl", "{\"text\": \"ab\"}");
  (void)Open(json);
  const fs::path used = *fs::directory_iterator(cache);
  age(used, 31);
  (void)Open(json);  // It is read again.
  for (const auto& [name, num_days] : std::map<std::string, int>{
           {"1.tokens", 31}, {"2.tokens.tmp.17", 31}, {"3.tokens", 29}, {"notes", 31}}) {
    Write("cache/dsat/" + name, "12345678");
    age(cache / name, num_days);
  }
  Write("a.jsonl", "{\"text\": \"abc\"}");
  (void)Open(json);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(cache))
    left.insert(entry.path().filename());
  EXPECT_EQ(left.size(), 4U);  // The new one, too.
  EXPECT_TRUE(left.contains(used.filename()));
  EXPECT_TRUE(left.contains("3.tokens"));
  EXPECT_TRUE(left.contains("notes"));
}

TEST_F(DocumentsTest, MistakesInDocumentsAreNamedByFileAndLine) {
  const Json json = {{"type", "jsonl"}, {"path", "a.jsonl"}};
  const std::string path = folder_ / "a.jsonl";
  for (const char* line : {"{\"text\": 1}", "{\"txt\": \"a\"}", "[\"a\"]", "{\"text\": \"a\"", "x",
                           "{\"text\": \"\xff\"}"}) {
    Write("a.jsonl", std::string("{\"text\": \"a\"}\n\n") + line + "\n");
    ExpectRefused(json, path + ":3: expected a JSON object with a string at \"text\"");
  }
  Write("a.txt", "a\nb\xff");
  ExpectRefused({{"type", "text"}, {"path", "a.txt"}, {"tokenizer", "tokenizer.json"}},
                folder_ / "a.txt" + ": line 2: byte 0xff is not UTF-8");
  Write("a.jsonl", "{\"text\": \"a\"}");
  const auto refused = [&](const char* key, const Json& value, const std::string& message) {
    Json block = json;
    block[key] = value;
    ExpectRefused(block, message);
  };
  refused("text_key", 1, "/data/text_key is 1; expected the key");
  refused("sampling", "epoch", "/data/sampling is \"epoch\"; did you mean \"epochs\"?");
  refused("end_of_text", "x", "/data/end_of_text: unknown key");
  refused("tokenizer", 1, "/data/tokenizer is 1; expected a tokenizer.json");
  refused("tokenizer", "none.json", "/data/tokenizer: cannot read");
  Json named = json;
  named["tokenizer"] = "tokenizer.json";
  named["end_of_text"] = "<eos>";
  ExpectRefused(named, "/data/end_of_text is \"<eos>\"; expected the token that ends a document");
  Json unnamed = SmallTokenizer();
  unnamed["added_tokens"] = Json::array();
  Write("tokenizer.json", unnamed.dump());
  refused("tokenizer", "tokenizer.json", "/data/end_of_text is missing; expected the token");
}

// ---- Order and width. ----

std::vector<int32_t> FirstTokens(const Dataset& dataset, int64_t begin, int64_t count, int64_t T) {
  std::vector<int32_t> firsts, tokens(static_cast<size_t>(T)), targets(tokens.size());
  for (int64_t i = begin; i < begin + count; ++i) {
    dataset.Sample(i, T, tokens.data(), targets.data());
    firsts.push_back(tokens[0]);
  }
  return firsts;
}

TEST_F(DocumentsTest, AnEpochHasEverySampleOnceInANewOrder) {
  std::string text;
  for (int i = 0; i < 62; ++i)
    text.push_back(static_cast<char>(i));
  Write("a.txt", text);
  const Json json = {{"type", "text"}, {"path", "a.txt"}, {"sampling", "epochs"}};
  std::vector<int32_t> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(3 * i);
  const auto dataset = Open(json);
  const auto first = FirstTokens(*dataset, 0, 20, 3);
  const auto second = FirstTokens(*dataset, 20, 20, 3);
  EXPECT_THAT(first, testing::UnorderedElementsAreArray(all));
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(all));
  EXPECT_NE(first, second);
  EXPECT_NE(first, all);
  EXPECT_NE(first, FirstTokens(*Open(json, 2), 0, 20, 3));
  // A run that continues begins anywhere.
  EXPECT_THAT(FirstTokens(*Open(json), 27, 13, 3),
              ElementsAreArray(second.begin() + 7, second.end()));
}

TEST_F(DocumentsTest, JsonLinesAreDrawnByEpochsAndTextAtRandom) {
  Write("a.jsonl", "{\"text\": \"0123456789\"}");
  Write("a.txt", std::string("0123456789\0", 11));
  Json lines = {{"type", "jsonl"}, {"path", "a.jsonl"}},
       text = {{"type", "text"}, {"path", "a.txt"}};
  EXPECT_THAT(FirstTokens(*Open(lines), 0, 5, 2),
              testing::UnorderedElementsAre('0', '2', '4', '6', '8'));
  EXPECT_NE(FirstTokens(*Open(lines), 0, 50, 2), FirstTokens(*Open(text), 0, 50, 2));
  lines["sampling"] = "random";
  EXPECT_EQ(FirstTokens(*Open(lines), 0, 50, 2), FirstTokens(*Open(text), 0, 50, 2));
}

TEST_F(DocumentsTest, TheWidthOfTokensIsSaidOrFollowsFromTheVocabulary) {
  const std::vector<uint32_t> wide = {70000, 2, 3};
  const std::vector<uint16_t> narrow = {1, 2, 3, 4};
  Write("wide.bin", {reinterpret_cast<const char*>(wide.data()), 12});
  Write("narrow.bin", {reinterpret_cast<const char*>(narrow.data()), 8});
  const auto tokens = [](const char* path, int64_t vocab_size) {
    return Json{{"type", "tokens"}, {"path", path}, {"vocab_size", vocab_size}};
  };
  EXPECT_THAT(All(tokens("wide.bin", 70001), 3), ElementsAre(70000, 2, 3));
  EXPECT_THAT(All(tokens("narrow.bin", 65536), 4), ElementsAre(1, 2, 3, 4));
  Json said = tokens("narrow.bin", 70001);
  said["dtype"] = "uint16";
  EXPECT_THAT(All(said, 4), ElementsAre(1, 2, 3, 4));
  said["path"] = "wide.bin";
  said["dtype"] = "uint32";
  EXPECT_THAT(All(said, 3), ElementsAre(70000, 2, 3));
  said["dtype"] = "int32";
  ExpectRefused(said, "/data/dtype is \"int32\"; did you mean");
  std::vector<uint32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  Write("header.bin", {reinterpret_cast<const char*>(header.data()), 1024});
  said["dtype"] = "uint32";
  said["path"] = "header.bin";
  ExpectRefused(
      said, "header.bin: its header says uint16, and \"dtype\" says uint32; leave \"dtype\" out");
}

TEST_F(DocumentsTest, TokensCanHaveATokenizer) {
  const std::vector<uint16_t> tokens = {256, 258};
  Write("a.bin", {reinterpret_cast<const char*>(tokens.data()), 4});
  const Json json = {{"type", "tokens"}, {"path", "a.bin"}, {"tokenizer", "tokenizer.json"}};
  EXPECT_EQ(Open(json)->vocab_size(), 259);
  EXPECT_EQ(TextCodec::Open(json, folder_.path(), "/data")->Decode(std::vector<int32_t>{256}),
            "ab");
  EXPECT_EQ(TextCodec::Open({{"type", "tokens"}, {"path", "a.bin"}}, folder_.path(), "/data"),
            nullptr);
}

TEST(TextCodecTest, BytesSurviveTheRoundTrip) {
  const auto codec = TextCodec::Open({{"type", "text"}, {"path", "a"}}, "", "/data");
  const std::string text("h\xc3\xa9llo\0\xff", 8);
  EXPECT_EQ(codec->Decode(codec->Encode(text)), text);
  EXPECT_EQ(codec->Decode(std::vector<int32_t>{65, 256, 66}), "A\\u{256}B");
}

}  // namespace
}  // namespace dsat::engine
