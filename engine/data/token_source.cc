// Files as one long row of tokens.
#include "engine/data/token_source.h"

#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "engine/data/mapped_text.h"

namespace dsat::engine {
namespace {

class Bytes final : public TokenSource {
 public:
  explicit Bytes(const std::vector<std::string>& files) : text_(files) {}

  int64_t size() const override { return text_.size(); }
  int64_t vocab_size() const override { return 256; }
  const char* unit() const override { return "bytes of text"; }
  void Copy(int64_t begin, int64_t count, int32_t* out) const override {
    text_.Read(begin, count, [&out](std::string_view piece) {
      for (const char c : piece)
        *out++ = static_cast<uint8_t>(c);
    });
  }

 private:
  MappedText text_;
};

class TokenFiles final : public TokenSource {
 public:
  TokenFiles(const std::vector<std::string>& paths, int64_t vocab_size, int64_t token_bytes)
      : wanted_bytes_(token_bytes), headerless_bytes_(token_bytes) {
    if (token_bytes == 0) headerless_bytes_ = vocab_size > 65536 ? 4 : 2;
    for (const std::string& path : paths)
      Add(path);
    vocab_size_ = vocab_size > 0 ? vocab_size : (token_bytes_ == 4 ? 128256 : 50257);
  }

  int64_t size() const override { return size_; }
  int64_t vocab_size() const override { return vocab_size_; }
  const char* unit() const override { return "tokens"; }
  void Copy(int64_t begin, int64_t count, int32_t* out) const override;

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

  void Add(const std::string& path);
  Format FormatOf(const MappedText& bytes) const;
  void CopyFrom(const File& file, int64_t begin, int64_t count, int32_t* out) const;

  std::vector<File> files_;
  int64_t size_ = 0;
  int64_t wanted_bytes_;      // The wanted bytes of a token; 0: any.
  int64_t headerless_bytes_;  // In files without a header.
  int64_t token_bytes_ = 0;
  int64_t vocab_size_ = 0;
};

const char* TypeOf(int64_t token_bytes) {
  return token_bytes == 2 ? "uint16" : "uint32";
}

void CopyBytes(const MappedText& text, int64_t begin, int64_t count, void* out) {
  auto* to = static_cast<char*>(out);
  text.Read(begin, count, [&to](std::string_view piece) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  });
}

TokenFiles::Format TokenFiles::FormatOf(const MappedText& bytes) const {
  constexpr int64_t kHeaderBytes = 256 * 4;
  if (bytes.size() < kHeaderBytes) return {.token_bytes = headerless_bytes_};
  std::array<int32_t, 3> header{};  // Magic number, version, number of tokens.
  CopyBytes(bytes, 0, sizeof(header), header.data());
  if (header[0] == 20240520 && header[1] == 1) return {kHeaderBytes, 2, header[2]};
  if (header[0] == 20240801 && header[1] == 7) return {kHeaderBytes, 4, header[2]};
  return {.token_bytes = headerless_bytes_};
}

void TokenFiles::Add(const std::string& path) {
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

void TokenFiles::CopyFrom(const File& file, int64_t begin, int64_t count, int32_t* out) const {
  const int64_t from = file.header_bytes + (begin - file.first) * token_bytes_;
  if (token_bytes_ == 4) {
    CopyBytes(*file.bytes, from, count * 4, out);
  } else {
    std::vector<uint16_t> tokens(static_cast<size_t>(count));
    CopyBytes(*file.bytes, from, count * 2, tokens.data());
    std::copy(tokens.begin(), tokens.end(), out);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (TokenOf(out[i]) < vocab_size_) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}: token {} is {}; expected less than vocab_size, {}: raise those of the data and the "
          "model, or make the tokens again",
          file.path, begin - file.first + i, out[i], vocab_size_);
  }
}

void TokenFiles::Copy(int64_t begin, int64_t count, int32_t* out) const {
  for (const File& file : files_) {
    const int64_t from = std::max(begin, file.first);
    const int64_t to = std::min(begin + count, file.first + file.count);
    if (from < to) CopyFrom(file, from, to - from, out + (from - begin));
  }
}

}  // namespace

std::unique_ptr<TokenSource> OpenBytes(const std::vector<std::string>& files) {
  return std::make_unique<Bytes>(files);
}

std::unique_ptr<TokenSource> OpenTokenFiles(const std::vector<std::string>& files,
                                            int64_t vocab_size, int64_t token_bytes) {
  return std::make_unique<TokenFiles>(files, vocab_size, token_bytes);
}

}  // namespace dsat::engine
