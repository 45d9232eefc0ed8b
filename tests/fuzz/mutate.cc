// Changes inputs at random.
#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace dsat::fuzz {
namespace {

constexpr std::array<std::string_view, 38> kWords = {"0",
                                                     "-1",
                                                     "1",
                                                     "2147483648",
                                                     "9223372036854775807",
                                                     "-9223372036854775808",
                                                     "1e9",
                                                     "1e3",
                                                     "1e18",
                                                     "18446744073709551616",
                                                     "1e308",
                                                     "1e999",
                                                     "0.5",
                                                     "nan",
                                                     "null",
                                                     "true",
                                                     "false",
                                                     "\"\"",
                                                     "[]",
                                                     "{}",
                                                     "[",
                                                     "{",
                                                     "\"",
                                                     "'",
                                                     ",",
                                                     ":",
                                                     "/",
                                                     "\n",
                                                     "\\",
                                                     "#",
                                                     "-",
                                                     "*",
                                                     "&a ",
                                                     "\n%%\n",
                                                     "\xff",
                                                     "\xc3\xa4",
                                                     " ",
                                                     "\r"};

size_t Below(Rng& rng, size_t n) {
  return static_cast<size_t>(rng.Below(n));
}

// Some bytes of `text`, mostly few.
std::string_view Piece(std::string_view text, Rng& rng) {
  if (text.empty()) return text;
  const size_t begin = Below(rng, text.size());
  const size_t most = rng.Below(4) == 0 ? text.size() : 16;
  return text.substr(begin, 1 + Below(rng, most));
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// Replaces a number of the text, if it has one behind a random position.
void ReplaceNumber(std::string& text, Rng& rng) {
  const auto from = text.begin() + static_cast<std::ptrdiff_t>(Below(rng, text.size() + 1));
  const auto begin = std::find_if(from, text.end(), IsDigit);
  const auto end = std::find_if_not(begin, text.end(), IsDigit);
  if (begin != end) text.replace(begin, end, kWords[Below(rng, 14)]);
}

void Change(std::string& text, const std::vector<std::string>& seeds, Rng& rng) {
  const size_t at = Below(rng, text.size() + 1);
  switch (rng.Below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << rng.Below(8)));
      return;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(rng.Below(256));
      return;
    case 2:
      text.erase(at, 1 + Below(rng, 8));
      return;
    case 3:
      text.resize(at);
      return;
    case 4:
      text.insert(at, Piece(std::string(text), rng));
      return;
    case 5:
      text.insert(at, kWords[Below(rng, kWords.size())]);
      return;
    case 6:
      text.insert(at, Piece(seeds[Below(rng, seeds.size())], rng));
      return;
    default:
      ReplaceNumber(text, rng);
  }
}

}  // namespace

std::string Mutated(const std::vector<std::string>& seeds, Rng& rng) {
  std::string text = seeds[Below(rng, seeds.size())];
  for (size_t changes = 1 + Below(rng, 4); changes > 0; --changes)
    Change(text, seeds, rng);
  return text;
}

}  // namespace dsat::fuzz
