// Checks of options.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/files.h"
#include "cli/flags_parser.h"

namespace dsat::cli {
namespace {

std::string Refusal(const std::string& text, const std::string& expected) {
  return fmt::format("{}; expected {}", text.empty() ? "nothing" : Printable(text), expected);
}

}  // namespace

CLI::Option* TakeOneOf(CLI::Option* option, const std::vector<std::string>& words) {
  const auto check = [words](const std::string& text) -> std::string {
    if (std::ranges::find(words, text) != words.end()) return "";
    const std::string nearest = NearestWord(text, words);
    return Refusal(text, fmt::format("{}{}", fmt::join(words, ", "),
                                     nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  };
  return option->type_name(fmt::format("{}", fmt::join(words, "|")))->check(check, "");
}

CLI::Validator WholeNumber(bool positive) {
  // Seconds, steps or ranks: sums and products of a few do not overflow.
  constexpr int64_t kMostCounted = 1'000'000'000;
  const int64_t least = positive ? 1 : 0;
  const int64_t most = positive ? kMostCounted : std::numeric_limits<int64_t>::max();
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        int64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, number);
        // CLI11 would read 010 as 8.
        const bool octal = text.size() > 1 && text[0] == '0';
        if (error == std::errc() && stop == end && !octal && number >= least && number <= most)
          return "";
        const bool too_large = error == std::errc::result_out_of_range || number > most;
        return Refusal(text, too_large ? fmt::format("a whole number up to {}", most)
                                       : fmt::format("a whole number of {} or more", least));
      },
      "");
}

CLI::Validator Number(bool positive) {
  return CLI::Validator(
      [positive](std::string& text) -> std::string {
        double number = 0;
        const bool read = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
        if (read && (positive ? number > 0 : number >= 0)) return "";
        return Refusal(text, positive ? "a number above 0" : "a number of 0 or more");
      },
      "");
}

CLI::Validator Duration() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const char unit = text.empty() ? '\0' : text.back();
        const double factor = unit == 'h' ? 3600 : unit == 'm' ? 60 : 1;
        const bool has_unit = unit == 'h' || unit == 'm' || unit == 's';
        double number = 0;
        const bool read =
            CLI::detail::lexical_cast(text.substr(0, text.size() - (has_unit ? 1 : 0)), number);
        if (!read || !std::isfinite(number) || number <= 0)
          return Refusal(text, "a duration above 0 such as 90s, 10m or 2h");
        text = fmt::format("{}", number * factor);
        return "";
      },
      "");
}

}  // namespace dsat::cli
