// Shared by the formats: which tensor the next bytes belong to.
#include "engine/files/tensor_file.h"

#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

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

}  // namespace dsat::engine
