// Files as one long row of tokens.
#include "engine/data/token_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
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

const char* TypeOf(int64_t token_bytes) {
  return token_bytes == 2 ? "uint16" : "uint32";
}

class TokenFiles {
 public:
  TokenFiles(const std::vector<std::string>& paths, int64_t vocab_size, int64_t token_bytes)
      : wanted_bytes_(token_bytes), headerless_bytes_(token_bytes) {
    if (token_bytes == 0) headerless_bytes_ = vocab_size > 65536 ? 4 : 2;
    for (const std::string& path : paths)
      Add(path);
    vocab_size_ = vocab_size > 0 ? vocab_size : (token_bytes_ == 4 ? 128256 : 50257);
  }

  int64_t size() const { return size_; }
  int64_t vocab_size() const { return vocab_size_; }
  void Copy(int64_t begin, int64_t count, int32_t* out) const {
    for (const File& file : files_) {
      const int64_t from = std::max(begin, file.first);
      const int64_t to = std::min(begin + count, file.first + file.count);
      if (from < to) CopyFrom(file, from, to - from, out + (from - begin));
    }
  }

 private:
  struct File {
    std::string path;
    std::unique_ptr<MappedText> bytes;
    int64_t header_bytes = 0;
    int64_t first = 0;  // Where its first token is in the whole.
    int64_t count = 0;
  };
  struct Format {
    int64_t header_bytes = 0;
    int64_t token_bytes = 0;
    int64_t num_tokens = -1;  // As the header says; -1 without one.
  };

  Format FormatOf(const MappedText& bytes) const {
    constexpr int64_t kHeaderBytes = 256 * 4;
    if (bytes.size() < kHeaderBytes) return {.token_bytes = headerless_bytes_};
    std::array<int32_t, 3> header{};  // Magic number, version, number of tokens.
    bytes.Copy(0, sizeof(header), header.data());
    if (header[0] == 20240520 && header[1] == 1) return {kHeaderBytes, 2, header[2]};
    if (header[0] == 20240801 && header[1] == 7) return {kHeaderBytes, 4, header[2]};
    return {.token_bytes = headerless_bytes_};
  }

  void Add(const std::string& path) {
    File file{.path = path, .bytes = std::make_unique<MappedText>(std::vector{path})};
    const Format format = FormatOf(*file.bytes);
    const int64_t data_bytes = file.bytes->size() - format.header_bytes;
    if (format.num_tokens >= 0 && data_bytes != format.num_tokens * format.token_bytes) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: {} bytes follow the header, which says {} tokens of {} bytes; expected the whole "
            "file",
            path, data_bytes, format.num_tokens, format.token_bytes);
    }
    if (data_bytes % format.token_bytes != 0) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: {} bytes are not whole tokens of {} bytes; \"dtype\" tells the type of tokens "
            "without a header",
            path, data_bytes, format.token_bytes);
    }
    if (wanted_bytes_ != 0 && format.token_bytes != wanted_bytes_) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: its header says {}, and \"dtype\" says {}; leave \"dtype\" out", path,
            TypeOf(format.token_bytes), TypeOf(wanted_bytes_));
    }
    if (token_bytes_ != 0 && format.token_bytes != token_bytes_) {
      Throw(ErrorCode::kInvalidArgument, "{}: tokens of {} bytes; those of {} have {}", path,
            format.token_bytes, files_.front().path, token_bytes_);
    }
    token_bytes_ = format.token_bytes;
    file.header_bytes = format.header_bytes;
    file.first = size_;
    file.count = data_bytes / token_bytes_;
    size_ += file.count;
    if (file.count > 0) files_.push_back(std::move(file));
  }

  void CopyFrom(const File& file, int64_t begin, int64_t count, int32_t* out) const {
    const int64_t from = file.header_bytes + (begin - file.first) * token_bytes_;
    if (token_bytes_ == 4) {
      file.bytes->Copy(from, count * 4, out);
    } else {
      std::vector<uint16_t> tokens(static_cast<size_t>(count));
      file.bytes->Copy(from, count * 2, tokens.data());
      std::copy(tokens.begin(), tokens.end(), out);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (TokenOf(out[i]) < vocab_size_) continue;
      Throw(
          ErrorCode::kInvalidArgument,
          "{}: token {} is {}; expected less than vocab_size, {}: raise those of the data and the "
          "model, or make the tokens again",
          file.path, begin - file.first + i, out[i], vocab_size_);
    }
  }

  std::vector<File> files_;
  int64_t size_ = 0;
  int64_t wanted_bytes_;      // The wanted bytes of a token; 0: any.
  int64_t headerless_bytes_;  // In files without a header.
  int64_t token_bytes_ = 0;
  int64_t vocab_size_ = 0;
};

namespace fs = std::filesystem;

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
TokenSource OpenKept(const std::string& file, int64_t vocab_size) {
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

TokenSource OpenBytes(const std::vector<std::string>& files) {
  const auto text = std::make_shared<const MappedText>(files);
  const auto copy = [text](int64_t begin, int64_t count, int32_t* out) {
    text->Read(begin, count, [&out](std::string_view piece) {
      for (const char c : piece)
        *out++ = static_cast<uint8_t>(c);
    });
  };
  return {text->size(), 256, "bytes of text", copy};
}

TokenSource OpenTokenFiles(const std::vector<std::string>& files, int64_t vocab_size,
                           int64_t token_bytes) {
  const auto tokens = std::make_shared<const TokenFiles>(files, vocab_size, token_bytes);
  return {tokens->size(), tokens->vocab_size(), "tokens",
          std::bind_front(&TokenFiles::Copy, tokens)};
}

TokenSource OpenDocuments(const std::vector<std::string>& files, const TextCodec& codec,
                          const std::string& text_key) {
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
  const auto tokens =
      std::make_shared<const std::vector<int32_t>>(TokensOf(files, codec, text_key));
  if (!cache.empty()) {
    try {
      fs::create_directories(fs::path(cache).parent_path());
      KeepTokens(*tokens, cache);
      Prune(fs::path(cache).parent_path());
      return OpenTokenFiles({cache}, codec.vocab_size(), 4);
    } catch (const std::exception& error) {
      Log(LogLevel::kWarn, "tokens are not kept for the next run", {{"reason", error.what()}});
    }
  }
  const auto copy = [tokens](int64_t begin, int64_t count, int32_t* out) {
    std::copy_n(tokens->begin() + begin, count, out);
  };
  return {std::ssize(*tokens), codec.vocab_size(), "tokens", copy};
}

}  // namespace dsat::engine
