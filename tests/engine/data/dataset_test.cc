// Data: the same index gives the same sample, samples cover the text, mistakes are named.
#include "engine/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/base/error_code.h"
#include "tests/engine/data/data_folder.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct TokensAndTargets {
  std::vector<int32_t> tokens, targets;
  bool operator==(const TokensAndTargets&) const = default;
};

TokensAndTargets Draw(const Dataset& dataset, int64_t index, int64_t T) {
  TokensAndTargets sample{std::vector<int32_t>(static_cast<size_t>(T), -1),
                          std::vector<int32_t>(static_cast<size_t>(T), -1)};
  dataset.Sample(index, T, sample.tokens.data(), sample.targets.data());
  return sample;
}

std::string AsText(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

class DatasetTest : public DataFolderTest {
 protected:
  std::unique_ptr<Dataset> OpenPath(const Json& path) const {
    return Open({{"type", "text"}, {"path", path}});
  }

  // The text as samples of 1 token show it: the set of (token, next token).
  static std::set<std::string> Pairs(const Dataset& dataset) {
    std::set<std::string> pairs;
    for (int64_t index = 0; index < 500; ++index) {
      const TokensAndTargets sample = Draw(dataset, index, 1);
      pairs.insert(AsText(sample.tokens) + AsText(sample.targets));
    }
    return pairs;
  }

  void ExpectError(const Json& json, ErrorCode code, const std::string& message) const {
    const Error error = ErrorOf([&] { (void)Open(json); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
};

TEST_F(DatasetTest, TargetsAreTheTokensAfter) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  Write("a.txt", text);
  const auto dataset = OpenPath("a.txt");
  EXPECT_EQ(dataset->vocab_size(), 256);
  for (int64_t index = 0; index < 100; ++index) {
    const TokensAndTargets sample = Draw(*dataset, index, 10);
    const size_t begin = text.find(AsText(sample.tokens) + AsText({sample.targets.back()}));
    ASSERT_NE(begin, std::string::npos);
    EXPECT_EQ(AsText(sample.targets), text.substr(begin + 1, 10));
  }
}

TEST_F(DatasetTest, BytesAreTokensWithoutSign) {
  Write("a", std::string("\xff\x00\x80\xff\x00\x80", 6));
  const TokensAndTargets sample = Draw(*OpenPath("a"), 0, 5);
  for (const int32_t token : sample.tokens)
    EXPECT_TRUE(token == 255 || token == 0 || token == 128);
}

TEST_F(DatasetTest, SamplesDependOnSeedAndIndexAlone) {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += std::to_string(i) + " ";
  Write("a.txt", text);
  for (const Json& json :
       {Json{{"type", "text"}, {"path", "a.txt"}}, Json{{"type", "synthetic"}}}) {
    const auto first = Open(json);
    const auto second = Open(json);
    const auto other_seed = Open(json, 2);
    const TokensAndTargets late = Draw(*first, 1'000'000, 32);
    for (int64_t index = 0; index < 20; ++index) {
      EXPECT_EQ(Draw(*first, index, 32), Draw(*second, index, 32));
      EXPECT_NE(Draw(*first, index, 32), Draw(*first, index + 1, 32));
      EXPECT_NE(Draw(*first, index, 32), Draw(*other_seed, index, 32));
    }
    EXPECT_EQ(Draw(*second, 1'000'000, 32), late);
  }
}

TEST_F(DatasetTest, EveryOffsetComesUp) {
  Write("a.txt", "abcdefghij");
  const auto dataset = OpenPath("a.txt");
  std::map<char, int> starts;
  for (int64_t index = 0; index < 3000; ++index) {
    ++starts[static_cast<char>(Draw(*dataset, index, 7).tokens[0])];
  }
  // Offsets 0, 1 and 2 hold 7 tokens and a target; each about a third of the time.
  EXPECT_EQ(starts.size(), 3U);
  for (const char start : {'a', 'b', 'c'})
    EXPECT_NEAR(starts[start], 1000, 150) << start;
}

TEST_F(DatasetTest, ShortestPossibleTextWorks) {
  Write("a.txt", "abcd");
  EXPECT_EQ(AsText(Draw(*OpenPath("a.txt"), 5, 3).targets), "bcd");
}

TEST_F(DatasetTest, FoldersAreReadRecursivelyInSortedOrder) {
  Write("texts/b/deep.txt", "34");
  Write("texts/a.txt", "12");
  Write("texts/empty.txt", "");
  Write("texts/c.txt", "56");
  Write("texts/.hidden", "78");
  Write("texts/.git/file", "90");
  EXPECT_THAT(Pairs(*OpenPath("texts")), testing::ElementsAre("12", "23", "34", "45", "56"));
}

TEST_F(DatasetTest, SamplesRunAcrossFiles) {
  Write("texts/1", "ab");
  Write("texts/2", "c");
  Write("texts/3", "defg");
  EXPECT_EQ(AsText(Draw(*OpenPath("texts"), 0, 6).tokens), "abcdef");
  EXPECT_EQ(AsText(Draw(*OpenPath("texts"), 0, 6).targets), "bcdefg");
}

TEST_F(DatasetTest, GlobsAndListsWork) {
  Write("x1.txt", "12");
  Write("x2.txt", "34");
  Write("x3.md", "56");
  EXPECT_THAT(Pairs(*OpenPath("x*.txt")), testing::ElementsAre("12", "23", "34"));
  EXPECT_THAT(Pairs(*OpenPath({"x3.md", "x1.txt"})), testing::ElementsAre("12", "56", "61"));
  EXPECT_THAT(Pairs(*OpenPath(folder_ / "x3.md")), testing::ElementsAre("56"));
  Write("[odd].txt", "78");
  EXPECT_THAT(Pairs(*OpenPath("[odd].txt")), testing::ElementsAre("78"));
}

TEST_F(DatasetTest, MissingFilesAreNamed) {
  ExpectError({{"type", "text"}, {"path", "none.txt"}}, ErrorCode::kNotFound,
              "/data/path: " + folder_ / "none.txt" + ": no such file or folder");
  ExpectError({{"type", "text"}, {"path", "*.none"}}, ErrorCode::kNotFound,
              "/data/path: " + folder_ / "*.none" + ": no file matches");
  Write("b.idx", "");
  ExpectError({{"type", "idx"}, {"images", "a.idx"}, {"labels", "b.idx"}}, ErrorCode::kNotFound,
              "/data/images: " + folder_ / "a.idx" + ": no such file");
  Write("a.txt", "abc");
  ExpectError({{"type", "text"}, {"path", {"a.txt", "b.txt"}}}, ErrorCode::kNotFound, "b.txt");
}

TEST_F(DatasetTest, TooShortTextsAreRefused) {
  Write("empty.txt", "");
  Write("short.txt", "0123456789");
  ExpectError({{"type", "text"}, {"path", "empty.txt"}}, ErrorCode::kInvalidArgument,
              "empty.txt: 0 bytes of text; expected at least 2");
  ExpectError({{"type", "text"}, {"path", "empty.txt"}, {"validation", {{"split", 0.1}}}},
              ErrorCode::kInvalidArgument, "empty.txt: 0 bytes of text; expected at least 2");
  ExpectError({{"type", "text"}, {"path", "short.txt"}, {"seq_len", 10}},
              ErrorCode::kInvalidArgument,
              "short.txt: 10 bytes of text; expected at least 11 for sequences of 10 tokens");
  EXPECT_NO_THROW((void)Open({{"type", "text"}, {"path", "short.txt"}, {"seq_len", 9}}));
  fs::create_directory(folder_ / "nothing");
  ExpectError({{"type", "text"}, {"path", "nothing"}}, ErrorCode::kInvalidArgument,
              "/data/path (0 files): 0 bytes of text");
  EXPECT_THROW((void)Draw(*OpenPath("short.txt"), 0, 10), Error);
  ASSERT_EQ(mkfifo((folder_ / "pipe.txt").c_str(), 0600), 0);  // To which nobody writes.
  ExpectError({{"type", "text"}, {"path", "pipe.txt"}}, ErrorCode::kInvalidArgument,
              "pipe.txt: 0 bytes of text; expected at least 2");
}

TEST_F(DatasetTest, MistakesInTheBlockAreNamed) {
  const auto refused = [&](const Json& json, const std::string& message) {
    ExpectError(json, ErrorCode::kInvalidArgument, message);
  };
  refused(7, "/data is a number; expected an object");
  refused(Json::object(), "/data/type is missing");
  refused({{"type", "txt"}}, "/data/type is \"txt\"; did you mean \"text\"?");
  refused({{"type", "text"}}, "/data/path is missing");
  refused({{"type", "text"}, {"path", 1}}, "/data/path is 1; expected a file, a folder or a glob");
  refused({{"type", "text"}, {"path", ""}}, "/data/path is \"\"");
  refused({{"type", "text"}, {"paths", "x"}}, "/data/paths: unknown key; did you mean \"path\"?");
  refused({{"type", "text"}, {"vocab_size", 300}}, "/data/vocab_size: unknown key");
  refused({{"type", "synthetic"}, {"vocab_size", 1}},
          "/data/vocab_size is 1; expected a whole number in [2, 16777216]");
}

TEST_F(DatasetTest, SequenceLengthIsTheBlocksOrTheModels) {
  EXPECT_EQ(SeqLen({{"type", "synthetic"}, {"seq_len", 128}}, 1024, "/data"), 128);
  EXPECT_EQ(SeqLen({{"type", "synthetic"}, {"seq_len", 1024}}, 1024, "/data"), 1024);
  EXPECT_EQ(SeqLen({{"type", "synthetic"}}, 1024, "/data"), 1024);
  for (const Json& seq_len : {Json(0), Json(1025), Json("128"), Json(1.5)}) {
    EXPECT_THAT(RefusalOf([&] {
                  (void)SeqLen({{"seq_len", seq_len}}, 1024, "/data");
                }),
                HasSubstr("expected a whole number in [1, 1024]"))
        << seq_len;
  }
}

TEST(SyntheticDatasetTest, TokensFollowAChainOfFourSuccessors) {
  const auto dataset = OpenDataset({{"type", "synthetic"}, {"vocab_size", 50}}, "", 3, "/data");
  EXPECT_EQ(dataset->vocab_size(), 50);
  std::map<int32_t, std::map<int32_t, double>> followers;
  double num_tokens = 0;
  for (int64_t index = 0; index < 2000; ++index) {
    const TokensAndTargets sample = Draw(*dataset, index, 20);
    for (size_t t = 0; t < 20; ++t) {
      if (t > 0) {
        ASSERT_EQ(sample.tokens[t], sample.targets[t - 1]);
      }
      ASSERT_TRUE(sample.targets[t] >= 0 && sample.targets[t] < 50);
      ++followers[sample.tokens[t]][sample.targets[t]];
      ++num_tokens;
    }
  }
  EXPECT_EQ(followers.size(), 50U);  // Every token is a start.
  double entropy = 0;                // A token's, given the one before; in nats.
  for (const auto& [token, next] : followers) {
    EXPECT_LE(next.size(), 4U);
    double total = 0;
    for (const auto& [target, count] : next)
      total += count;
    for (const auto& [target, count] : next)
      entropy -= count / num_tokens * std::log(count / total);
  }
  EXPECT_LT(entropy, 1.75 * std::log(2) + 0.01);
  EXPECT_GT(entropy, 1.0);  // Two successors may be the same token.
}

TEST(SyntheticDatasetTest, TheChainIsTheSameForEverySeed) {
  std::map<int32_t, std::set<int32_t>> followers;
  for (int64_t seed = 0; seed < 5; ++seed) {
    const auto dataset = OpenDataset({{"type", "synthetic"}, {"vocab_size", 50}}, "", seed, "");
    for (int64_t index = 0; index < 500; ++index) {
      const TokensAndTargets sample = Draw(*dataset, index, 20);
      for (size_t t = 0; t < 20; ++t)
        followers[sample.tokens[t]].insert(sample.targets[t]);
    }
  }
  for (const auto& [token, next] : followers)
    EXPECT_LE(next.size(), 4U);
}

}  // namespace
}  // namespace dsat::engine
