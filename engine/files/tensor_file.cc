// Shared by the formats: which tensor the next bytes belong to.
#include "engine/files/tensor_file.h"

#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/files/safetensors.h"
#include "engine/files/torch_file.h"

namespace dsat::engine {

int64_t TensorSpec::NumElems() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

TensorFileWriter::TensorFileWriter(std::vector<TensorSpec> tensors) : tensors_(std::move(tensors)) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors_)
    DSAT_CHECK(names.insert(tensor.name).second, "{} twice", tensor.name);
}

void TensorFileWriter::Advance() {
  while (num_left_ <= 0) {
    if (num_left_ == 0) End();
    num_left_ = -1;
    if (next_ == tensors_.size()) return;
    Begin(tensors_[next_]);
    num_left_ = tensors_[next_].NumElems();
    ++next_;
  }
}

void TensorFileWriter::Write(const Tensor& piece) {
  if (piece.num_elems == 0) return;
  Advance();
  DSAT_CHECK(num_left_ >= piece.num_elems, "{} elements, {} are missing", piece.num_elems,
             num_left_);
  DSAT_CHECK(piece.dtype == tensors_[next_ - 1].dtype);
  Append({static_cast<const char*>(piece.data), static_cast<size_t>(piece.bytes())});
  num_left_ -= piece.num_elems;
}

void TensorFileWriter::Commit() {
  Advance();
  DSAT_CHECK(num_left_ < 0, "{} elements of {} are missing", num_left_, tensors_[next_ - 1].name);
  Finish();
}

std::string TensorFileFormat(const std::string& path) {
  if (path.ends_with(".safetensors")) return "safetensors";
  for (const char* end : {".bin", ".pt", ".pth"}) {
    if (path.ends_with(end)) return "bin";
  }
  Throw(
      ErrorCode::kInvalidArgument,
      "{}: the name does not say the format; expected one that ends in .safetensors, .bin, .pt or "
      ".pth",
      path);
}

std::unique_ptr<TensorFileWriter> MakeTensorFileWriter(const std::string& format,
                                                       const std::string& path,
                                                       std::vector<TensorSpec> tensors) {
  if (format == "bin") return std::make_unique<TorchFileWriter>(path, std::move(tensors));
  DSAT_CHECK(format == "safetensors", "{}", format);
  return std::make_unique<SafetensorsWriter>(
      path, std::map<std::string, std::string>{{"format", "pt"}}, std::move(tensors));
}

}  // namespace dsat::engine
