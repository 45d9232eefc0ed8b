// A state dict as torch.save writes it.
#include "engine/files/torch_file.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace dsat::engine {
namespace {

constexpr char kArchive[] = "archive";  // The folder in the zip file; readers take what they find.

const char* StorageClass(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "FloatStorage";
    case DType::kBF16:
      return "BFloat16Storage";
    case DType::kF16:
      return "HalfStorage";
  }
  DSAT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

// Opcodes of pickle's protocol 2 (Python's Lib/pickletools.py describes each).
class Pickle {
 public:
  Pickle() { text_ = "\x80\x02"; }  // PROTO 2

  Pickle& Op(char opcode) {
    text_ += opcode;
    return *this;
  }
  Pickle& Global(std::string_view module, std::string_view name) {
    text_ += fmt::format("c{}\n{}\n", module, name);
    return *this;
  }
  Pickle& Text(std::string_view text) {  // BINUNICODE
    text_ += 'X';
    PutLittleEndian(text.size(), 4);
    text_ += text;
    return *this;
  }
  // REQUIRES: not negative.
  Pickle& Number(int64_t value) {
    if (value <= std::numeric_limits<int32_t>::max()) {  // BININT
      text_ += 'J';
      PutLittleEndian(static_cast<uint64_t>(value), 4);
    } else {  // LONG1
      text_ += "\x8a\x08";
      PutLittleEndian(static_cast<uint64_t>(value), 8);
    }
    return *this;
  }
  Pickle& Numbers(const std::vector<int64_t>& values) {
    Op(kMark);
    for (const int64_t value : values)
      Number(value);
    return Op(kTuple);
  }
  const std::string& text() const { return text_; }

  static constexpr char kMark = '(', kTuple = 't', kEmptyTuple = ')', kReduce = 'R';
  static constexpr char kEmptyDict = '}', kSetItems = 'u', kPersistentId = 'Q', kStop = '.';

 private:
  void PutLittleEndian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      text_ += static_cast<char>(value >> (8 * i) & 0xFFU);
  }

  std::string text_;
};

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), where storage
// is what the reader has under ("storage", class, key, "cpu", number of elements).
void PutTensor(Pickle& pickle, const TensorSpec& tensor, int64_t key) {
  pickle.Global("torch._utils", "_rebuild_tensor_v2").Op(Pickle::kMark);
  pickle.Op(Pickle::kMark).Text("storage").Global("torch", StorageClass(tensor.dtype));
  pickle.Text(std::to_string(key)).Text("cpu").Number(tensor.NumElems());
  pickle.Op(Pickle::kTuple).Op(Pickle::kPersistentId);
  pickle.Number(0).Numbers(tensor.shape).Numbers(ContiguousStrides(tensor.shape));
  pickle.Op('\x89');  // NEWFALSE: requires_grad
  pickle.Global("collections", "OrderedDict").Op(Pickle::kEmptyTuple).Op(Pickle::kReduce);
  pickle.Op(Pickle::kTuple).Op(Pickle::kReduce);
}

std::string StateDict(const std::vector<TensorSpec>& tensors) {
  Pickle pickle;
  pickle.Op(Pickle::kEmptyDict).Op(Pickle::kMark);
  for (size_t i = 0; i < tensors.size(); ++i) {
    pickle.Text(tensors[i].name);
    PutTensor(pickle, tensors[i], static_cast<int64_t>(i));
  }
  return pickle.Op(Pickle::kSetItems).Op(Pickle::kStop).text();
}

std::string EntryName(std::string_view name) {
  return fmt::format("{}/{}", kArchive, name);
}

}  // namespace

TorchFileWriter::TorchFileWriter(const std::string& path, std::vector<TensorSpec> specs,
                                 int64_t zip64_from)
    : TensorFileWriter(std::move(specs)), zip_(path, zip64_from) {
  zip_.Add(EntryName("data.pkl"), StateDict(tensors()));
  zip_.Add(EntryName("byteorder"), "little");
}

void TorchFileWriter::Begin(const TensorSpec& tensor) {
  zip_.Begin(EntryName(fmt::format("data/{}", num_storages_++)), tensor.bytes());
}

void TorchFileWriter::Finish() {
  zip_.Add(EntryName("version"), "3\n");
  zip_.Commit();
}

}  // namespace dsat::engine
