// Gradients of biases, and biases, where cuBLASLt does not make them with a product.
#include "engine/backend/cuda/column_sums.h"
#include "engine/backend/cuda/octet.h"

namespace dsat::engine::cuda {
namespace {

// A block sums kBiasColumns columns, an octet a thread; kRowLanes threads share a column, and each
// has kRowsUnderWay rows under way.
constexpr int kBiasColumns = kWarp * kOctet, kRowsUnderWay = 4;
static_assert(kBiasColumns == kWarp * kRowLanes, "a thread for each column");

unsigned BiasBlocks(int64_t N) {
  return static_cast<unsigned>((N + kBiasColumns - 1) / kBiasColumns);
}
// As many parts of the rows as make four blocks for each multiprocessor of an H200.
int64_t NumBiasParts(int64_t M, int64_t N) {
  constexpr int64_t kBlocks = 528, kLeastRows = kRowLanes * kRowsUnderWay;
  return std::max<int64_t>(1, std::min(kBlocks / BiasBlocks(N), (M + kLeastRows - 1) / kLeastRows));
}

// partial (parts, N, 2) = the sums of a part's rows of dy (M, N), and zeros.
template <typename T>
__global__ void PartialBiasGrad(float2* partial, const T* dy, int64_t M, int64_t N) {
  __shared__ float sums[kRowLanes][kBiasColumns];
  const int64_t first_column = int64_t{blockIdx.x} * kBiasColumns;
  const int64_t c = first_column + threadIdx.x * kOctet;
  const int64_t part_rows = (M + gridDim.y - 1) / gridDim.y;
  const int64_t end = min(M, (blockIdx.y + 1) * part_rows);
  Octet sum = {};
  for (int64_t row = blockIdx.y * part_rows + threadIdx.y; row < end;
       row += kRowLanes * kRowsUnderWay) {
    PackedOctet<T> octets[kRowsUnderWay];
    for (int i = 0; i < kRowsUnderWay; ++i) {
      const int64_t at = row + i * kRowLanes;
      octets[i] = LoadPacked(dy + at * N, c, at < end ? N : 0);
    }
    for (const PackedOctet<T>& octet : octets) {
      const Octet values = Unpack(octet);
      for (int j = 0; j < kOctet; ++j)
        sum[j] += values[j];
    }
  }
  for (int j = 0; j < kOctet; ++j)
    sums[threadIdx.y][threadIdx.x * kOctet + j] = sum[j];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.y) * kWarp + static_cast<int>(threadIdx.x);
  float total = 0.0F;
  for (const auto& lane : sums)
    total += lane[column];
  if (first_column + column < N) partial[blockIdx.y * N + first_column + column] = {total, 0.0F};
}

template <typename Y, typename B>
__global__ void AddBiasKernel(Y* y, const B* bias, int64_t n, int64_t N) {
  for (int64_t i = FirstIndex(); i < n; i += IndexStride())
    y[i] = FromFloat<Y>(ToFloat(y[i]) + ToFloat(bias[i % N]));
}

}  // namespace

void BiasGrad(const Tensor& db, const Tensor& dy, int64_t M, int64_t N, CudaWorkspace& workspace) {
  const int64_t parts = NumBiasParts(M, N);
  auto* partial = static_cast<float2*>(workspace.Get(parts * N * int64_t{sizeof(float2)}));
  Visit(dy.dtype, [&]<typename T>(T) {
    const dim3 grid(BiasBlocks(N), static_cast<unsigned>(parts));
    Launch(PartialBiasGrad<T>, {grid, dim3(kWarp, kRowLanes)}, partial, dy, M, N);
    AddPartialSums<T>(db, {}, partial, parts, N);
  });
}

void AddBias(const Tensor& y, const Tensor& bias, int64_t M, int64_t N) {
  Visit(y.dtype, [&]<typename Y>(Y) {
    Visit(bias.dtype, [&]<typename B>(B) {
      Launch(AddBiasKernel<Y, B>, {NumBlocks(M * N), kThreads}, y, bias, M * N, N);
    });
  });
}

}  // namespace dsat::engine::cuda
