// UTF-8 and its normalization by utf8proc. The only file that includes it.
#include "engine/data/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"

namespace dsat::engine {
namespace {

// Appends the normalized `run`. `space` is memory that is used again.
void AppendNormalized(std::string_view run, utf8proc_option_t options,
                      std::vector<utf8proc_int32_t>& space, std::string& to) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(run.data());
  const auto size = static_cast<utf8proc_ssize_t>(run.size());
  const auto decompose = [&] {  // utf8proc_reencode wants one more element.
    const auto capacity = static_cast<utf8proc_ssize_t>(space.size()) - 1;
    return utf8proc_decompose(bytes, size, space.data(), capacity, options);
  };
  space.resize(std::max(space.size(), run.size() + 1));
  utf8proc_ssize_t length = decompose();
  if (length >= static_cast<utf8proc_ssize_t>(space.size())) {
    space.resize(static_cast<size_t>(length) + 1);
    length = decompose();
  }
  if (length >= 0) length = utf8proc_reencode(space.data(), length, options);
  DSAT_CHECK(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  to.append(reinterpret_cast<const char*>(space.data()), static_cast<size_t>(length));
}

}  // namespace

std::optional<TextNormalizer> TextNormalizer::OfName(std::string_view name) {
  constexpr std::pair<std::string_view, int> kForms[] = {
      {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
      {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
      {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
      {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  for (const auto& [form, options] : kForms) {
    if (name == form) return TextNormalizer(options);
  }
  return std::nullopt;
}

// No form changes ASCII or composes an ASCII character with what is before it. A run of other
// characters is normalized together with the ASCII character in front, which may compose with it.
std::string TextNormalizer::Normalize(std::string_view text) const {
  const auto is_ascii = [&](size_t i) { return static_cast<unsigned char>(text[i]) < 0x80; };
  std::string normalized;
  normalized.reserve(text.size());
  std::vector<utf8proc_int32_t> space;
  for (size_t begin = 0, at = 0; begin < text.size(); begin = at) {
    while (at < text.size() && is_ascii(at))
      ++at;
    if (at == text.size()) return normalized.append(text.substr(begin));
    const size_t run = at > begin ? at - 1 : begin;
    normalized.append(text.substr(begin, run - begin));
    while (at < text.size() && !is_ascii(at))
      ++at;
    AppendNormalized(text.substr(run, at - run), static_cast<utf8proc_option_t>(options_), space,
                     normalized);
  }
  return normalized;
}

void CheckUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i;
    utf8proc_int32_t code = 0;
    const auto length =
        utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - i), &code);
    if (length < 0) {
      Throw(ErrorCode::kInvalidArgument, "line {}: byte 0x{:02x} is not UTF-8; convert the text",
            std::count(text.begin(), text.begin() + static_cast<int64_t>(i), '\n') + 1, *bytes);
    }
    i += static_cast<size_t>(length);
  }
}

}  // namespace dsat::engine
