// The safetensors file format.
#include "engine/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace dsat::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.

struct NamedDType {
  const char* name;
  DType dtype;
};
constexpr NamedDType kDTypes[] = {
    {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F16", DType::kF16}};

const char* Name(DType dtype) {
  for (const NamedDType& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

std::optional<DType> DTypeOf(const std::string& name) {
  for (const NamedDType& known : kDTypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

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
                     std::span<const NamedTensor> tensors) {
  Json header = Json::object();
  header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", Name(tensor.data.dtype)},
                           {"shape", {tensor.data.num_elems}},
                           {"data_offsets", {offset, offset + tensor.data.bytes()}}};
    offset += tensor.data.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // So that the data starts aligned.
  return text;
}

void Sync(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) ThrowErrno("cannot open " + path, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (result != 0) ThrowErrno("cannot write " + path, error);
}

}  // namespace

void WriteSafetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                      std::span<const NamedTensor> tensors) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const std::string header = HeaderOf(metadata, tensors);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file << header;
  for (const NamedTensor& tensor : tensors) {
    file.write(static_cast<const char*>(tensor.data.data), tensor.data.bytes());
  }
  file.close();
  if (!file) Throw(ErrorCode::kUnavailable, "cannot write {}: the disk may be full", path);
  Sync(path);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) Throw(ErrorCode::kNotFound, "{}: no such file, or not readable", path);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  uint64_t header_bytes = 0;
  if (!ReadAt(file_.get(), 0, &header_bytes, sizeof(header_bytes)) ||
      header_bytes > kMaxHeaderBytes || static_cast<int64_t>(header_bytes) > file_bytes - 8) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole safetensors file", path);
  }
  std::string text(header_bytes, ' ');
  if (!ReadAt(file_.get(), 8, text.data(), static_cast<int64_t>(header_bytes))) {
    Throw(ErrorCode::kDataLoss, "{}: not a whole safetensors file", path);
  }
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
      other_dtypes_[name] = dtype;
      continue;
    }
    entry.dtype = *known;
    entry.shape = value.at("shape").get<std::vector<int64_t>>();
    const int64_t begin = value.at("data_offsets").at(0);
    const int64_t end = value.at("data_offsets").at(1);
    if (begin < 0 || end < begin || data_offset + end > file_bytes) {
      Throw(ErrorCode::kDataLoss, "{}: {} lies outside the file of {} bytes", path_, name,
            file_bytes);
    }
    entry.num_elems =
        std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
    if (entry.num_elems * BytesPerElem(entry.dtype) != end - begin) {
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

void SafetensorsFile::Read(const Entry& entry, int64_t begin, Tensor dst) const {
  DSAT_CHECK(dst.dtype == entry.dtype && begin >= 0 && begin + dst.num_elems <= entry.num_elems);
  const int64_t offset = entry.offset + begin * BytesPerElem(entry.dtype);
  if (!ReadAt(file_.get(), offset, dst.data, dst.bytes()))
    Throw(ErrorCode::kDataLoss, "{}: cannot read {} bytes", path_, dst.bytes());
}

}  // namespace dsat::engine
