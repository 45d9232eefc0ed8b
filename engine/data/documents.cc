// Files of documents as one long row of tokens.
#include "engine/data/documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file_writer.h"
#include "base/files.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/data/mapped_text.h"
#include "engine/files/crc32.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

// Tokens in memory, of documents.
class MemoryTokens final : public TokenSource {
 public:
  MemoryTokens(std::vector<int32_t> tokens, int64_t vocab_size)
      : tokens_(std::move(tokens)), vocab_size_(vocab_size) {}

  int64_t size() const override { return std::ssize(tokens_); }
  int64_t vocab_size() const override { return vocab_size_; }
  const char* unit() const override { return "tokens"; }
  void Copy(int64_t begin, int64_t count, int32_t* out) const override {
    std::copy_n(tokens_.begin() + begin, count, out);
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t vocab_size_;
};

// Text, of which a part at the beginning may be a prompt.
struct Document {
  std::string prompt;
  std::string text;
};

// The document of a line of JSON Lines.
Document DocumentOf(std::string_view line, const std::string& text_key) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const std::string& key) {
    return json.is_object() && json.contains(key) && json.at(key).is_string();
  };
  if (has(text_key)) return {"", json.at(text_key)};
  if (has("prompt") && has("completion")) {
    const std::string prompt = json.at("prompt"), completion = json.at("completion");
    return {prompt, prompt + completion};
  }
  Throw(ErrorCode::kInvalidArgument,
        "expected a JSON object with a string at \"{}\" (\"text_key\" names another key), or with "
        "strings at \"prompt\" and \"completion\"",
        text_key);
}

// The tokens that the text begins with as its prompt alone does are no targets.
void AppendDocument(std::string_view prompt, std::string_view text, const TextCodec& codec,
                    std::vector<int32_t>& tokens) {
  if (text.empty()) return;
  std::vector<int32_t> document = codec.Encode(text), beginning;
  if (!prompt.empty()) beginning = codec.EncodePrompt(prompt);
  const auto end = std::ranges::mismatch(document, beginning).in1;
  std::transform(document.begin(), end, document.begin(), std::bit_not<>());
  tokens.insert(tokens.end(), document.begin(), document.end());
  tokens.push_back(codec.end_of_text());
}

void AppendLines(const std::string& file, std::string_view content, const TextCodec& codec,
                 const std::string& text_key, std::vector<int32_t>& tokens) {
  for (int64_t number = 1; !content.empty(); ++number) {
    const std::string_view line = content.substr(0, content.find('\n'));
    content.remove_prefix(std::min(line.size() + 1, content.size()));
    if (Trimmed(line).empty()) continue;
    try {
      const Document document = DocumentOf(line, text_key);
      AppendDocument(document.prompt, document.text, codec, tokens);
    } catch (const Error& error) {
      Throw(error.code(), "{}:{}: {}", file, number, error.what());
    }
  }
}

std::vector<int32_t> TokensOf(const std::vector<std::string>& files, const TextCodec& codec,
                              const std::string& text_key) {
  std::vector<int32_t> tokens;
  for (const std::string& file : files) {
    const MappedText text({file});
    text.Read(0, text.size(), [&](std::string_view content) {
      if (!text_key.empty()) return AppendLines(file, content, codec, text_key, tokens);
      try {
        AppendDocument("", content, codec, tokens);
      } catch (const Error& error) {
        Throw(error.code(), "{}: {}", file, error.what());
      }
    });
  }
  return tokens;
}

// The file that keeps the tokens of a tokenizer, "" if there is no folder for it. Its name depends
// on everything that the tokens depend on.
std::string CacheFile(std::vector<std::string> files, const TextCodec& codec,
                      const std::string& text_key) {
  if (codec.tokenizer_path().empty()) return "";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache == '/') {
    folder = fs::path(cache) / "dsat";
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".cache/dsat";
  } else {
    return "";
  }
  // 2: the version of the tokens' computation and of the file.
  std::string key = fmt::format("2 {} {}", codec.end_of_text(), text_key);
  files.push_back(codec.tokenizer_path());
  for (const std::string& file : files) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) return "";
    key += fmt::format("\n{} {} {}.{}", fs::absolute(file).string(), info.st_size,
                       info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return folder / fmt::format("{:016x}.tokens", StableHash(key));
}

// The header of kept tokens in their file: llm.c's header without their number, for which its 32
// bits may be too few, and the checksum of the tokens.
std::string HeaderOfKept(std::string_view tokens) {
  const std::array<int32_t, 256> header = {20240801, 7, -1, static_cast<int32_t>(Crc32(0, tokens))};
  return {reinterpret_cast<const char*>(header.data()), sizeof(header)};
}

// Throws kDataLoss if the file is not as KeepTokens wrote it.
std::unique_ptr<TokenSource> OpenKept(const std::string& file, int64_t vocab_size) {
  const size_t header_bytes = HeaderOfKept("").size();
  bool is_whole = false;
  const MappedText text({file});
  text.Read(0, text.size(), [&](std::string_view content) {
    const std::string_view tokens = content.substr(std::min(header_bytes, content.size()));
    is_whole = content.starts_with(HeaderOfKept(tokens));
  });
  if (!is_whole) Throw(ErrorCode::kDataLoss, "{}: was altered or cut short", file);
  return OpenTokenFiles({file}, vocab_size, 4);
}

void KeepTokens(const std::vector<int32_t>& tokens, const std::string& file) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()),
                               tokens.size() * sizeof(tokens[0]));
  FileWriter out(file);
  out.Write(HeaderOfKept(bytes));
  out.Write(bytes);
  out.Commit();
}

// Removes files of tokens that no run has read for 30 days, and what killed runs have left of some.
void Prune(const fs::path& folder) {
  const auto now = fs::file_time_type::clock::now();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().native().find(".tokens") == std::string::npos) continue;
    const fs::file_time_type read = entry.last_write_time(ignored);
    if (!ignored && now - read > std::chrono::days(30)) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

std::unique_ptr<TokenSource> OpenDocuments(const std::vector<std::string>& files,
                                           const TextCodec& codec, const std::string& text_key) {
  const std::string cache = CacheFile(files, codec, text_key);
  std::error_code ignored;
  if (!cache.empty() && fs::exists(cache, ignored)) {
    try {
      auto kept = OpenKept(cache, codec.vocab_size());
      fs::last_write_time(cache, fs::file_time_type::clock::now(), ignored);  // For Prune.
      return kept;
    } catch (const Error& error) {
      Log(LogLevel::kWarn, "kept tokens cannot be used and are computed again",
          {{"reason", error.what()}});
    }
  }
  std::vector<int32_t> tokens = TokensOf(files, codec, text_key);
  if (!cache.empty()) {
    try {
      fs::create_directories(fs::path(cache).parent_path());
      KeepTokens(tokens, cache);
      Prune(fs::path(cache).parent_path());
      return OpenTokenFiles({cache}, codec.vocab_size(), 4);
    } catch (const std::exception& error) {
      Log(LogLevel::kWarn, "tokens are not kept for the next run", {{"reason", error.what()}});
    }
  }
  return std::make_unique<MemoryTokens>(std::move(tokens), codec.vocab_size());
}

}  // namespace dsat::engine
