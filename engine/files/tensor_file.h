// A file of named tensors that is written front to back, piece by piece, so that the whole model is
// never in memory. The tensors are announced first, from which both formats compute all offsets.
#ifndef DSAT_ENGINE_FILES_TENSOR_FILE_H_
#define DSAT_ENGINE_FILES_TENSOR_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/tensor.h"

namespace dsat::engine {

struct TensorSpec {
  std::string name;  // Unique in its file.
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major.
  int64_t NumElems() const;
  int64_t bytes() const { return NumElems() * BytesPerElem(dtype); }
};

// Errors of all calls name the file.
class TensorFileWriter {
 public:
  virtual ~TensorFileWriter() = default;
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // The next elements, tensor after tensor in the order announced. REQUIRES: they lie in one tensor
  // and have its dtype.
  void Write(const Tensor& piece);
  // Completes the file, which then appears under its name, whole and on disk. REQUIRES: every
  // element was written.
  void Commit();

 protected:
  explicit TensorFileWriter(std::vector<TensorSpec> tensors);

 private:
  virtual void Begin(const TensorSpec& tensor) = 0;
  virtual void Append(std::string_view bytes) = 0;
  virtual void End() = 0;  // Ends the tensor.
  virtual void Finish() = 0;

  // Begins and ends tensors up to the next one that lacks elements.
  void Advance();

  std::vector<TensorSpec> tensors_;
  size_t next_ = 0;        // Tensors that were begun.
  int64_t num_left_ = -1;  // Elements that the last one begun still lacks; -1 if it was ended.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_FILES_TENSOR_FILE_H_
