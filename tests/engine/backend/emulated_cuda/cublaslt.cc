// cuBLASLt's functions that dsat calls, on the emulated GPU: products by Eigen, sums in f32.
// What the library refuses, or leaves undefined, ends in an error here.
#include "tests/engine/backend/emulated_cuda/cublaslt.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/backend/emulated_cuda/memory.h"

namespace {

using dsat::engine::cublaslt::Algorithm;
using dsat::engine::cublaslt::Choice;
using dsat::engine::cublaslt::Descriptor;
using dsat::engine::cublaslt::Handle;
using dsat::engine::cublaslt::Status;
using emulated_cuda::Memory;
namespace cublaslt = dsat::engine::cublaslt;

using cublaslt::kNotSupported;

enum : Status { kSuccess = 0, kInvalidValue = 7 };
constexpr uint64_t kRoundsParts = uint64_t{1} << 32;  // In an algorithm, beside its index.

struct Product {
  int32_t transpose_a = cublaslt::kNormal, transpose_b = cublaslt::kNormal;
  uint32_t epilogue = cublaslt::kNoEpilogue;
  void* vector = nullptr;  // A bias, or its gradient.
  void* aux = nullptr;
  int64_t aux_stride = 0;

  bool AddsBias() const { return (epilogue & cublaslt::kAddBias) != 0; }
  bool HasVector() const { return AddsBias() || epilogue == cublaslt::kBiasGradientA; }
  bool WritesGelu() const {
    return epilogue == cublaslt::kGeluAux || epilogue == cublaslt::kGeluAuxBias;
  }
  bool HasAux() const { return WritesGelu() || epilogue == cublaslt::kGeluGradient; }
};
// Column by column.
struct Matrix {
  int type = CUDA_R_32F;
  int64_t rows = 0, cols = 0, stride = 0;

  int64_t NumElems() const { return cols == 0 ? 0 : (cols - 1) * stride + rows; }
};
struct Preference {
  uint64_t workspace_bytes = 0;
  std::map<int, uint32_t> words;  // By attribute.

  uint32_t Alignment(int attribute) const { return Word(attribute, 256); }
  // Whether sums may be split into parts that are each rounded to the result's type.
  bool RoundsParts() const {
    constexpr uint32_t kAllSchemes = 7;
    return (Word(cublaslt::kReductionSchemes, kAllSchemes) & ~cublaslt::kInComputeType) != 0;
  }

 private:
  uint32_t Word(int attribute, uint32_t otherwise) const {
    const auto found = words.find(attribute);
    return found == words.end() ? otherwise : found->second;
  }
};
struct Operand {
  const Matrix* matrix = nullptr;
  const void* data = nullptr;
};

template <typename T>
const T& As(Descriptor descriptor) {
  return *static_cast<const T*>(descriptor);
}
template <typename T>
void Read(T& to, const void* from) {
  std::memcpy(&to, from, sizeof(T));
}

int64_t BytesPerElem(int type) {
  return type == CUDA_R_32F ? 4 : 2;
}
float Load(const void* data, int64_t i, int type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}
void Store(void* data, int64_t i, int type, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else if (type == CUDA_R_16F) {
    static_cast<__half*>(data)[i] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

// op(matrix) in f32.
Eigen::MatrixXf Gather(const Operand& operand, bool transposed) {
  const Matrix& m = *operand.matrix;
  Eigen::MatrixXf all(m.rows, m.cols);
  for (int64_t col = 0; col < m.cols; ++col) {
    for (int64_t row = 0; row < m.rows; ++row)
      all(row, col) = Load(operand.data, col * m.stride + row, m.type);
  }
  if (transposed) all.transposeInPlace();
  return all;
}

struct Problem {
  Product product;
  Matrix a, b, result;
  float alpha = 1, beta = 0;
  const void *a_data = nullptr, *b_data = nullptr, *c_data = nullptr;
  void* d_data = nullptr;
  bool rounds_parts = false;

  // As the library sees the epilogue's.
  Matrix Vector() const { return {result.type, result.rows, 1, result.rows}; }
  Matrix Aux() const { return {result.type, result.rows, result.cols, product.aux_stride}; }
};

// With the tanh approximation.
float Gelu(float x) {
  return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
}
float GeluGradient(float x) {
  const float t = std::tanh(0.7978845608F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.7978845608F * (1 + 3 * 0.044715F * x * x);
}

// The epilogue for one number of D, in f32: what is written of GELU's input is rounded, what GELU
// takes is not.
float Finish(const Problem& p, int64_t row, int64_t col, float value) {
  const Product& product = p.product;
  const int type = p.result.type;
  const int64_t aux_at = col * product.aux_stride + row;
  if (product.AddsBias()) value += Load(product.vector, row, type);
  if (product.WritesGelu()) {
    Store(product.aux, aux_at, type, value);
    return Gelu(value);
  }
  return product.HasAux() ? value * GeluGradient(Load(product.aux, aux_at, type)) : value;
}

float Rounded(float value, int type) {
  float rounded = 0;
  Store(&rounded, 0, type, value);
  return Load(&rounded, 0, type);
}

// Like kernels of the library on an H200, it rounds a product before the next term is added.
void Multiply(const Problem& p) {
  const Eigen::MatrixXf a = Gather({&p.a, p.a_data}, p.product.transpose_a != 0);
  const Eigen::MatrixXf b = Gather({&p.b, p.b_data}, p.product.transpose_b != 0);
  const int type = p.result.type;
  const int64_t part = p.rounds_parts ? a.cols() / 2 : 0;
  const Eigen::MatrixXf first = a.leftCols(part) * b.topRows(part);
  const Eigen::MatrixXf sums = a.rightCols(a.cols() - part) * b.bottomRows(b.rows() - part);
  for (int64_t col = 0; col < sums.cols(); ++col) {
    for (int64_t row = 0; row < sums.rows(); ++row) {
      const int64_t at = col * p.result.stride + row;
      float value = p.alpha * sums(row, col);
      if (part > 0) value = Rounded(value, type) + Rounded(p.alpha * first(row, col), type);
      if (p.beta != 0) value = Rounded(value, type) + p.beta * Load(p.c_data, at, type);
      if (p.beta != 0 && p.product.AddsBias()) value = Rounded(value, type);
      Store(p.d_data, at, type, Finish(p, row, col, value));
    }
  }
  if (p.product.epilogue != cublaslt::kBiasGradientA) return;
  for (int64_t row = 0; row < a.rows(); ++row)
    Store(p.product.vector, row, type, a.row(row).sum());
}

bool IsAligned(const void* data, uint64_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

bool IsSupportedEpilogue(const Product& product, const Matrix& result) {
  switch (product.epilogue) {
    case cublaslt::kNoEpilogue:
    case cublaslt::kAddBias:
      return true;
    case cublaslt::kGeluAux:
    case cublaslt::kGeluAuxBias:
    case cublaslt::kGeluGradient:
      return product.aux_stride >= result.rows && IsAligned(product.aux, 16);
    case cublaslt::kBiasGradientA:
      return product.transpose_a == cublaslt::kNormal;
    default:
      return false;
  }
}

// The sizes fit, and the types are a combination that the library's documentation lists for sums
// in f32.
bool IsSupported(const Product& product, const Matrix& a, const Matrix& b, const Matrix& result) {
  const auto op_rows = [](const Matrix& m, int32_t transposed) {
    return transposed != 0 ? m.cols : m.rows;
  };
  const auto op_cols = [](const Matrix& m, int32_t transposed) {
    return transposed != 0 ? m.rows : m.cols;
  };
  const bool sizes = op_rows(a, product.transpose_a) == result.rows &&
                     op_cols(b, product.transpose_b) == result.cols &&
                     op_cols(a, product.transpose_a) == op_rows(b, product.transpose_b);
  const bool types = a.type == b.type && (result.type == a.type || result.type == CUDA_R_32F);
  return sizes && types && a.stride >= a.rows && b.stride >= b.rows &&
         result.stride >= result.rows && IsSupportedEpilogue(product, result);
}

// The largest power of two up to 256 that divides the address.
uint64_t AlignmentOf(const void* data) {
  uint64_t alignment = 16;
  while (!IsAligned(data, alignment))
    alignment /= 2;
  return alignment;
}
bool IsThere(const Matrix& matrix, const void* data) {
  return Memory::Get().Holds(data,
                             static_cast<size_t>(matrix.NumElems() * BytesPerElem(matrix.type)));
}

std::atomic<int64_t>& CountOf(uint32_t epilogue) {
  static std::array<std::atomic<int64_t>, 257> counts = {};
  return counts.at(epilogue);
}

struct {
  std::mutex mutex;
  std::vector<emulated_cuda::Algorithm> known = {{}};
  int last = -1;
} algorithms;

template <typename T>
Status Create(Descriptor* descriptor, T value) {
  *descriptor = new T(std::move(value));
  return kSuccess;
}
template <typename T>
Status Destroy(Descriptor descriptor) {
  delete static_cast<T*>(descriptor);
  return kSuccess;
}

}  // namespace

extern "C" {

Status cublasLtCreate(Handle* handle) {
  return Create(handle, 0);
}
Status cublasLtDestroy(Handle handle) {
  return Destroy<int>(handle);
}

Status cublasLtMatmulDescCreate(Descriptor* product, int compute_type, int scale_type) {
  if (compute_type != cublaslt::kCompute32F || scale_type != CUDA_R_32F) return kNotSupported;
  return Create(product, Product());
}
Status cublasLtMatmulDescSetAttribute(Descriptor descriptor, int attribute, const void* value,
                                      size_t bytes) {
  auto& product = *static_cast<Product*>(descriptor);
  const bool wide = attribute == cublaslt::kBiasPointer || attribute == cublaslt::kAuxPointer ||
                    attribute == cublaslt::kAuxStride;
  if (bytes != (wide ? 8 : 4)) return kInvalidValue;
  switch (attribute) {
    case cublaslt::kTransposeA:
      Read(product.transpose_a, value);
      return kSuccess;
    case cublaslt::kTransposeB:
      Read(product.transpose_b, value);
      return kSuccess;
    case cublaslt::kEpilogue:
      Read(product.epilogue, value);
      return kSuccess;
    case cublaslt::kBiasPointer:
      Read(product.vector, value);
      return kSuccess;
    case cublaslt::kAuxPointer:
      Read(product.aux, value);
      return kSuccess;
    case cublaslt::kAuxStride:
      Read(product.aux_stride, value);
      return kSuccess;
    default:
      return kInvalidValue;
  }
}
Status cublasLtMatmulDescDestroy(Descriptor product) {
  return Destroy<Product>(product);
}

Status cublasLtMatrixLayoutCreate(Descriptor* matrix, int type, uint64_t rows, uint64_t cols,
                                  int64_t stride) {
  if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF) return kNotSupported;
  return Create(matrix,
                Matrix{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), stride});
}
Status cublasLtMatrixLayoutDestroy(Descriptor matrix) {
  return Destroy<Matrix>(matrix);
}

Status cublasLtMatmulPreferenceCreate(Descriptor* preference) {
  return Create(preference, Preference());
}
Status cublasLtMatmulPreferenceSetAttribute(Descriptor descriptor, int attribute, const void* value,
                                            size_t bytes) {
  auto& preference = *static_cast<Preference*>(descriptor);
  if (attribute == cublaslt::kMaxWorkspaceBytes) {
    if (bytes != sizeof(uint64_t)) return kInvalidValue;
    Read(preference.workspace_bytes, value);
    return kSuccess;
  }
  const bool is_alignment =
      attribute >= cublaslt::kMinAlignmentA && attribute <= cublaslt::kMinAlignmentD;
  if ((!is_alignment && attribute != cublaslt::kReductionSchemes) || bytes != sizeof(uint32_t))
    return kInvalidValue;
  Read(preference.words[attribute], value);
  return kSuccess;
}
Status cublasLtMatmulPreferenceDestroy(Descriptor preference) {
  return Destroy<Preference>(preference);
}

// The algorithm is the alignments that it relies on, and the workspace that it may use. Those of
// the epilogue's vector and matrix are what their pointers have now.
Status cublasLtMatmulAlgoGetHeuristic(Handle, Descriptor product, Descriptor a, Descriptor b,
                                      Descriptor c, Descriptor d, Descriptor descriptor, int wanted,
                                      Choice* choice, int* found) {
  *found = 0;
  if (wanted < 1) return kInvalidValue;
  if (c != d || !IsSupported(As<Product>(product), As<Matrix>(a), As<Matrix>(b), As<Matrix>(d)))
    return kNotSupported;
  const auto& asked = As<Product>(product);
  if (asked.epilogue > cublaslt::kAddBias && std::getenv("EMULATED_CUBLASLT_WITHOUT_EPILOGUES"))
    return kNotSupported;
  const auto& preference = As<Preference>(descriptor);
  const std::lock_guard lock(algorithms.mutex);
  *found = std::min(wanted, static_cast<int>(algorithms.known.size()));
  for (int i = 0; i < *found; ++i) {
    choice[i] = {};
    choice[i].workspace_bytes = preference.workspace_bytes;
    choice[i].algorithm = {
        {preference.Alignment(cublaslt::kMinAlignmentA),
         preference.Alignment(cublaslt::kMinAlignmentB),
         preference.Alignment(cublaslt::kMinAlignmentC),
         preference.Alignment(cublaslt::kMinAlignmentD), preference.workspace_bytes,
         AlignmentOf(asked.vector), AlignmentOf(asked.aux),
         static_cast<uint64_t>(i) | (preference.RoundsParts() ? kRoundsParts : 0)}};
  }
  return kSuccess;
}

Status cublasLtMatmul(Handle, Descriptor product, const void* alpha, const void* a,
                      Descriptor a_matrix, const void* b, Descriptor b_matrix, const void* beta,
                      const void* c, Descriptor, void* d, Descriptor d_matrix,
                      const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) {
  Problem p = {.product = As<Product>(product),
               .a = As<Matrix>(a_matrix),
               .b = As<Matrix>(b_matrix),
               .result = As<Matrix>(d_matrix),
               .a_data = a,
               .b_data = b,
               .c_data = c,
               .d_data = d};
  Read(p.alpha, alpha);
  Read(p.beta, beta);
  const uint64_t* relied = algorithm->data;
  const bool aligned = IsAligned(a, relied[0]) && IsAligned(b, relied[1]) &&
                       IsAligned(c, relied[2]) && IsAligned(d, relied[3]) &&
                       IsAligned(p.product.vector, relied[5]) &&
                       IsAligned(p.product.aux, relied[6]);
  const bool there =
      IsThere(p.a, a) && IsThere(p.b, b) && IsThere(p.result, c) && IsThere(p.result, d) &&
      (!p.product.HasVector() || IsThere(p.Vector(), p.product.vector)) &&
      (!p.product.HasAux() || IsThere(p.Aux(), p.product.aux)) && workspace_bytes >= relied[4] &&
      Memory::Get().Holds(workspace, workspace_bytes);
  p.rounds_parts = (relied[7] & kRoundsParts) != 0;
  // The documentation demands it, and the library may not look at it.
  const bool defined = !p.product.HasAux() || p.product.aux_stride % 8 == 0;
  const auto queue = emulated_cuda::Gpu::Get().Find(stream);
  if (!IsSupported(p.product, p.a, p.b, p.result) || !aligned || !there || !defined ||
      queue == nullptr)
    return kInvalidValue;
  const std::lock_guard lock(algorithms.mutex);
  const uint64_t index = relied[7] & ~kRoundsParts;
  const emulated_cuda::Algorithm& chosen = algorithms.known.at(index);
  if (chosen.fails) return kNotSupported;
  algorithms.last = static_cast<int>(index);
  emulated_cuda::Gpu::Get().Enqueue(queue, [p] { Multiply(p); });
  const bool is_more = p.product.epilogue > cublaslt::kAddBias;
  for (int i = 1; i < (is_more ? chosen.epilogue_work : chosen.work); ++i)
    emulated_cuda::Gpu::Get().Enqueue(queue, [] {});
  CountOf(p.product.epilogue)++;
  return kSuccess;
}

}  // extern "C"

namespace emulated_cuda {

void SetAlgorithms(std::vector<Algorithm> known) {
  const std::lock_guard lock(algorithms.mutex);
  algorithms.known = std::move(known);
}
int LastAlgorithm() {
  const std::lock_guard lock(algorithms.mutex);
  return algorithms.last;
}

int64_t NumProducts(cublaslt::Epilogue epilogue) {
  return CountOf(epilogue);
}

}  // namespace emulated_cuda
