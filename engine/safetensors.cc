// The safetensors file format.
#include "engine/safetensors.h"

#include <bit>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "engine/export/crc32.h"

namespace dsat::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.

std::string HeaderOf(const std::map<std::string, std::string>& metadata,
                     const std::vector<TensorSpec>& tensors) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    header[tensor.name] = {{"dtype", SafetensorsName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // So that the data starts aligned.
  return text;
}

std::optional<DType> DTypeOf(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace

const char* SafetensorsName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::map<std::string, std::string>& metadata,
                                     std::vector<TensorSpec> specs)
    : TensorFileWriter(std::move(specs)), file_(path) {
  const std::string header = HeaderOf(metadata, tensors());
  const uint64_t header_bytes = header.size();
  Append({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)});
  Append(header);
}

void SafetensorsWriter::Append(std::string_view bytes) {
  crc_ = Crc32(crc_, bytes);
  file_.Write(bytes);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path, std::ios::binary) {
  if (!file_) Throw(ErrorCode::kNotFound, "{}: no such file, or not readable", path);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  uint64_t header_bytes = 0;
  file_.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  if (!file_ || header_bytes > kMaxHeaderBytes ||
      static_cast<int64_t>(header_bytes) > file_bytes - 8) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole safetensors file", path);
  }
  std::string text(header_bytes, ' ');
  file_.read(text.data(), static_cast<std::streamsize>(header_bytes));
  try {
    ParseHeader(text, static_cast<int64_t>(header_bytes) + 8, file_bytes);
  } catch (const Json::exception& e) {
    Throw(ErrorCode::kDataLoss, "{}: bad safetensors header: {}", path, e.what());
  }
}

void SafetensorsFile::ParseHeader(const std::string& text, int64_t data_offset,
                                  int64_t file_bytes) {
  const Json header = Json::parse(text);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = value.get<std::map<std::string, std::string>>();
      continue;
    }
    Entry entry;
    const std::string dtype = value.at("dtype");
    const std::optional<DType> known = DTypeOf(dtype);
    if (!known) {
      Throw(ErrorCode::kDataLoss, "{}: {} is {}; expected F32, BF16 or F16", path_, name, dtype);
    }
    entry.dtype = *known;
    const int64_t begin = value.at("data_offsets").at(0);
    const int64_t end = value.at("data_offsets").at(1);
    if (begin < 0 || end < begin || data_offset + end > file_bytes) {
      Throw(ErrorCode::kDataLoss, "{}: {} lies outside the file of {} bytes", path_, name,
            file_bytes);
    }
    entry.num_elems = (end - begin) / BytesPerElem(entry.dtype);
    entry.offset = data_offset + begin;
    entries_[name] = entry;
  }
}

const SafetensorsFile::Entry* SafetensorsFile::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

int64_t SafetensorsFile::BeginOf(const std::string& name) const {
  const auto it = metadata_.find(name);
  const std::string text = it == metadata_.end() ? "" : it->second;
  int64_t begin = -1;
  std::from_chars(text.data(), text.data() + text.size(), begin);
  if (begin < 0) Throw(ErrorCode::kDataLoss, "{}: {} has no place in its parameter", path_, name);
  return begin;
}

void SafetensorsFile::Read(const Entry& entry, int64_t begin, Tensor dst) {
  DSAT_CHECK(dst.dtype == entry.dtype && begin >= 0 && begin + dst.num_elems <= entry.num_elems);
  file_.seekg(entry.offset + begin * BytesPerElem(entry.dtype));
  file_.read(static_cast<char*>(dst.data), dst.bytes());
  if (!file_) Throw(ErrorCode::kDataLoss, "{}: cannot read {} bytes", path_, dst.bytes());
}

}  // namespace dsat::engine
