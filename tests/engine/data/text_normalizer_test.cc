// Unicode's normalization forms: examples of the standard (UAX 15), and texts in which they occur.
#include "engine/data/text_normalizer.h"

#include <gtest/gtest.h>

#include <string>

namespace dsat::engine {
namespace {

std::string Normalized(const char* form, const std::string& text) {
  return TextNormalizer::OfName(form)->Normalize(text);
}

TEST(TextNormalizerTest, EachFormIsThatOfTheStandard) {
  const std::string long_s_with_dots = "\u1E9B\u0323";
  EXPECT_EQ(Normalized("NFC", long_s_with_dots), "\u1E9B\u0323");
  EXPECT_EQ(Normalized("NFD", long_s_with_dots), "\u017F\u0323\u0307");
  EXPECT_EQ(Normalized("NFKC", long_s_with_dots), "\u1E69");
  EXPECT_EQ(Normalized("NFKD", long_s_with_dots), "s\u0323\u0307");
  EXPECT_FALSE(TextNormalizer::OfName("nfc"));
}

TEST(TextNormalizerTest, AnAsciiCharacterComposesWithWhatFollowsIt) {
  EXPECT_EQ(Normalized("NFC", ""), "");
  EXPECT_EQ(Normalized("NFC", "cafe\u0301s and cafe\u0301"), "caf\u00E9s and caf\u00E9");
  EXPECT_EQ(Normalized("NFC", "\u0301e"), "\u0301e");
  EXPECT_EQ(Normalized("NFC", "a\u0323\u030Ab"), "\u1EA1\u030Ab");
  EXPECT_EQ(Normalized("NFC", std::string("\0e\u0301\0", 5)), std::string("\0\u00E9\0", 4));
}

TEST(TextNormalizerTest, CharactersMayBecomeManyMore) {
  const std::string phrase = Normalized("NFKC", "\uFDFA");
  EXPECT_EQ(phrase.size(), 33U);  // 15 letters and 3 spaces.
  std::string text, expected;
  for (int i = 0; i < 1000; ++i) {
    text += "\uFDFA";
    expected += phrase;
  }
  EXPECT_EQ(Normalized("NFKC", text), expected);
}

}  // namespace
}  // namespace dsat::engine
