// The work of the token embedding's gradient grows with the number of tokens and no faster,
// whichever tokens they are.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/backend/cuda/launch.h"
#include "tests/engine/backend/emulated_cuda/count_blocks.h"
#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine::cuda {
namespace {

constexpr int64_t kC = 4;
constexpr int32_t kV = 50304;

// Device memory with a copy of `values`.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  T* data() const { return static_cast<T*>(data_); }
  Tensor tensor() const { return {data_, static_cast<int64_t>(size_), DType::kF32}; }
  std::vector<T> Values() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// The basic blocks per token; expects the right gradient.
double WorkPerToken(const std::vector<int32_t>& tokens) {
  const auto N = static_cast<int64_t>(tokens.size());
  std::vector<float> grads(tokens.size() * kC), expected(size_t{kV} * kC, 0.0F);
  for (size_t i = 0; i < grads.size(); ++i) {
    grads[i] = static_cast<float>(i % 7) - 3;  // Whole numbers: their sums are exact.
    expected[static_cast<size_t>(tokens[i / kC]) * kC + i % kC] += grads[i];
  }
  const OnDevice<int32_t> ids(tokens);
  const OnDevice<float> dy(grads), dwte(std::vector<float>(expected.size(), 0.0F));
  CudaStream stream(0, std::make_shared<Watches>());
  CudaWorkspace workspace(0, stream);
  const int64_t before = emulated_cuda::CountBlocks();
  RunOp(op::EmbeddingBackward{dwte.tensor(), {}, dy.tensor(), ids.data(), N / 1024, 1024, kC},
        workspace);
  EXPECT_EQ(dwte.Values(), expected);
  return static_cast<double>(emulated_cuda::CountBlocks() - before) / static_cast<double>(N);
}

// GPT-2's vocabulary, evenly drawn; drawn as in text, where the commonest word is a twentieth and
// others are rarer in turn; tokens that all differ; one token.
std::vector<int32_t> Draw(const std::string& kind, int64_t N) {
  std::vector<int32_t> tokens = Random(12).Tokens(N, kV);
  if (kind == "text") {
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(std::pow(kV, token / double{kV})) - 1;
  } else if (kind == "distinct") {
    std::iota(tokens.begin(), tokens.end(), 0);
    std::reverse(tokens.begin(), tokens.end());
  } else if (kind == "equal") {
    std::fill(tokens.begin(), tokens.end(), 17);
  }
  return tokens;
}

TEST(EmbeddingWorkTest, TheWorkPerTokenIsBounded) {
  for (const std::string kind : {"even", "text", "distinct", "equal"}) {
    const double few = WorkPerToken(Draw(kind, 8192)), many = WorkPerToken(Draw(kind, 32768));
    RecordProperty(kind, std::to_string(many));
    EXPECT_LE(many, 3000) << kind;
    EXPECT_LE(many, 1.1 * few) << kind;
  }
}

}  // namespace
}  // namespace dsat::engine::cuda
