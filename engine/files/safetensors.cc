// The safetensors file format.
#include "engine/files/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "engine/files/crc32.h"

namespace dsat::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.

// Fills dst with the bytes from `offset` on. False if the file ends before.
bool ReadAt(int fd, int64_t offset, void* dst, int64_t bytes) {
  auto* out = static_cast<char*>(dst);
  while (bytes > 0) {
    const ssize_t count = ::pread(fd, out, static_cast<size_t>(bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    out += count;
    offset += count;
    bytes -= count;
  }
  return true;
}

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

}  // namespace

int64_t TensorSpec::NumElems() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const char* SafetensorsName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

std::optional<DType> DTypeOf(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::map<std::string, std::string>& metadata,
                                     std::vector<TensorSpec> specs)
    : file_(path), tensors_(std::move(specs)) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors_)
    DSAT_CHECK(names.insert(tensor.name).second, "{} twice", tensor.name);
  const std::string header = HeaderOf(metadata, tensors_);
  const uint64_t header_bytes = header.size();
  Append({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)});
  Append(header);
}

void SafetensorsWriter::Write(const Tensor& piece) {
  if (piece.num_elems == 0) return;
  while (num_left_ == 0) {
    DSAT_CHECK(next_ < tensors_.size(), "{} elements too many", piece.num_elems);
    num_left_ = tensors_[next_++].NumElems();
  }
  DSAT_CHECK(num_left_ >= piece.num_elems, "{} elements, {} are missing", piece.num_elems,
             num_left_);
  DSAT_CHECK(piece.dtype == tensors_[next_ - 1].dtype);
  Append({static_cast<const char*>(piece.data), static_cast<size_t>(piece.bytes())});
  num_left_ -= piece.num_elems;
}

void SafetensorsWriter::Commit() {
  for (; num_left_ == 0 && next_ < tensors_.size(); ++next_)
    num_left_ = tensors_[next_].NumElems();
  DSAT_CHECK(num_left_ == 0, "{} elements of {} are missing", num_left_, tensors_[next_ - 1].name);
  file_.Commit();
}

void SafetensorsWriter::Append(std::string_view bytes) {
  crc_ = Crc32(crc_, bytes);
  file_.Write(bytes);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!file_) Throw(ErrorCode::kNotFound, "{}: no such file, or not readable", path);
  std::error_code is_no_file;
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, is_no_file));
  uint64_t header_bytes = 0;
  if (is_no_file || !ReadAt(file_.get(), 0, &header_bytes, sizeof(header_bytes)) ||
      header_bytes > kMaxHeaderBytes || static_cast<int64_t>(header_bytes) > file_bytes - 8) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole safetensors file", path);
  }
  std::string text(header_bytes, ' ');
  if (!ReadAt(file_.get(), 8, text.data(), static_cast<int64_t>(header_bytes))) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole safetensors file", path);
  }
  try {
    ParseHeader(text, static_cast<int64_t>(header_bytes) + 8, file_bytes);
  } catch (const Json::exception&) {
    Throw(ErrorCode::kDataLoss,
          "{}: bad safetensors header; expected dtype, shape and data_offsets of each tensor",
          path);
  }
}

std::optional<int64_t> SafetensorsFile::NumElems(const std::vector<int64_t>& shape) {
  constexpr int64_t kMostBytesPerElem = 8;
  int64_t bytes = kMostBytesPerElem;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes / kMostBytesPerElem;
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
      other_dtypes_[name] = dtype;
      continue;
    }
    entry.dtype = *known;
    entry.shape = IntegersIn(value.at("shape"));
    const int64_t begin = IntegerIn(value.at("data_offsets").at(0));
    const int64_t end = IntegerIn(value.at("data_offsets").at(1));
    if (begin < 0 || end < begin || end > file_bytes - data_offset) {
      Throw(ErrorCode::kDataLoss, "{}: {} lies outside the file of {} bytes", path_, name,
            file_bytes);
    }
    const std::optional<int64_t> num_elems = NumElems(entry.shape);
    entry.num_elems = num_elems.value_or(0);
    if (!num_elems || *num_elems * BytesPerElem(entry.dtype) != end - begin) {
      Throw(ErrorCode::kDataLoss, "{}: {} has {} bytes, which is not its shape, {}", path_, name,
            end - begin, value.at("shape").dump());
    }
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
  const auto begin = ParseNumber<int64_t>(it == metadata_.end() ? "" : it->second);
  if (begin.value_or(-1) < 0)
    Throw(ErrorCode::kDataLoss, "{}: {} has no place in its parameter", path_, name);
  return *begin;
}

void SafetensorsFile::Read(const Entry& entry, int64_t begin, Tensor dst) const {
  DSAT_CHECK(dst.dtype == entry.dtype && begin >= 0 && begin + dst.num_elems <= entry.num_elems);
  const int64_t offset = entry.offset + begin * BytesPerElem(entry.dtype);
  if (!ReadAt(file_.get(), offset, dst.data, dst.bytes()))
    Throw(ErrorCode::kDataLoss, "{}: cannot read {} bytes", path_, dst.bytes());
}

}  // namespace dsat::engine
