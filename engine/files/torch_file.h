// A state dict {name: tensor} as torch.save writes it and torch.load(weights_only=True) reads it.
//
// The format (PyTorch's caffe2/serialize/inline_container.h, torch/serialization.py): a zip file
// with a pickle that rebuilds the tensors and one entry of raw little-endian bytes per tensor.
#ifndef DSAT_ENGINE_FILES_TORCH_FILE_H_
#define DSAT_ENGINE_FILES_TORCH_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/files/tensor_file.h"
#include "engine/files/zip_writer.h"

namespace dsat::engine {

class TorchFileWriter : public TensorFileWriter {
 public:
  // `zip64_from` as in ZipWriter.
  TorchFileWriter(const std::string& path, std::vector<TensorSpec> tensors,
                  int64_t zip64_from = 0xFFFFFFFF);

 private:
  void Begin(const TensorSpec& tensor) override;
  void Append(std::string_view bytes) override { zip_.Append(bytes); }
  void End() override { zip_.End(); }
  void Finish() override;

  ZipWriter zip_;
  int64_t num_storages_ = 0;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_FILES_TORCH_FILE_H_
