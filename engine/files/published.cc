// From a model's parameters to the tensors that other programs read.
#include "engine/files/published.h"

#include <utility>

#include "base/error.h"

namespace dsat::engine {
namespace {

// dst (cols, rows) = columns [begin, begin + cols) of src (rows, stride), transposed.
template <typename Elem>
void Transpose(char* dst, const char* src, int64_t rows, int64_t stride, int64_t begin,
               int64_t cols) {
  const auto* from = reinterpret_cast<const Elem*>(src);
  auto* to = reinterpret_cast<Elem*>(dst);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col)
      to[col * rows + row] = from[row * stride + begin + col];
  }
}

std::vector<TensorSpec> AllTensors(const std::vector<PublishedParam>& params, DType dtype) {
  std::vector<TensorSpec> all;
  for (const PublishedParam& param : params) {
    for (TensorSpec& tensor : param.Tensors(dtype))
      all.push_back(std::move(tensor));
  }
  return all;
}

}  // namespace

std::vector<TensorSpec> PublishedParam::Tensors(DType dtype) const {
  if (linears.empty()) return {{name, dtype, shape}};
  std::vector<TensorSpec> tensors;
  int64_t outs = 0;
  for (const LinearPart& linear : linears) {
    tensors.push_back({linear.name, dtype, {linear.outs, shape[0]}});
    outs += linear.outs;
  }
  DSAT_CHECK(shape.size() == 2 && outs == shape[1], "{}: {} columns", name, outs);
  return tensors;
}

PublishedWriter::PublishedWriter(const std::string& path, DType dtype,
                                 std::vector<PublishedParam> params)
    : dtype_(dtype),
      params_(std::move(params)),
      out_(path, {{"format", "pt"}}, AllTensors(params_, dtype)) {}

void PublishedWriter::Write(const Tensor& piece) {
  if (piece.num_elems == 0) return;
  while (num_left_ == 0) {
    DSAT_CHECK(next_ < params_.size(), "{} elements too many", piece.num_elems);
    num_left_ = TensorSpec{"", dtype_, params_[next_++].shape}.NumElems();
  }
  DSAT_CHECK(num_left_ >= piece.num_elems, "{} elements, {} are missing", piece.num_elems,
             num_left_);
  num_left_ -= piece.num_elems;
  const PublishedParam& param = params_[next_ - 1];
  if (param.linears.empty()) return out_.Write(piece);
  DSAT_CHECK(piece.dtype == dtype_);
  const char* bytes = static_cast<const char*>(piece.data);
  whole_.insert(whole_.end(), bytes, bytes + piece.bytes());
  if (num_left_ > 0) return;
  WriteLinears(param);
  whole_.clear();
}

void PublishedWriter::WriteLinears(const PublishedParam& param) {
  const int64_t in = param.shape[0], out = param.shape[1];
  std::vector<char> linear;
  int64_t begin = 0;
  for (const LinearPart& part : param.linears) {
    const int64_t num_elems = in * part.outs;
    linear.resize(static_cast<size_t>(num_elems * BytesPerElem(dtype_)));
    BytesPerElem(dtype_) == 4
        ? Transpose<uint32_t>(linear.data(), whole_.data(), in, out, begin, part.outs)
        : Transpose<uint16_t>(linear.data(), whole_.data(), in, out, begin, part.outs);
    out_.Write({linear.data(), num_elems, dtype_});
    begin += part.outs;
  }
}

void CheckPublishedName(const std::string& path) {
  if (path.ends_with(".safetensors")) return;
  Throw(ErrorCode::kInvalidArgument,
        "{}: expected a name that ends in .safetensors; in Python, `torch.save(safetensors.torch."
        "load_file(\"model.safetensors\"), \"model.bin\")` makes a file for torch.load of it",
        path);
}

}  // namespace dsat::engine
