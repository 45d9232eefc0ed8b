// The CPU backend, put together, and its stream: a CPU does at once what it is asked for.
#include "engine/backend/cpu/cpu_kernels.h"

#include <cstring>

#include "engine/backend/cpu/matmul.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/stream.h"

namespace dsat::engine {
namespace {

constexpr int64_t kCopyBytes = int64_t{1} << 16;  // The size of one piece of a copy.

class CpuStream final : public Stream {
 public:
  explicit CpuStream(int num_threads) : num_threads_(num_threads) {}

  void Upload(void* device, const void* host, int64_t bytes) override {
    ParallelBlocks(num_threads_, bytes, kCopyBytes, [=](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(device) + begin, static_cast<const char*>(host) + begin,
                  static_cast<size_t>(end - begin));
    });
  }
  void Download(void* host, const void* device, int64_t bytes) override {
    Upload(host, device, bytes);
  }

 private:
  int num_threads_;
};

}  // namespace

CpuKernels::CpuKernels(int num_threads)
    : num_threads_(num_threads),
      matmul_(std::make_shared<MatmulRunner>(num_threads)),
      conv_(MakeConvRunner(num_threads)) {}

std::unique_ptr<Stream> MakeCpuStream(int num_threads) {
  return std::make_unique<CpuStream>(num_threads);
}

std::unique_ptr<Kernels> MakeCpuKernels(int num_threads) {
  DSAT_CHECK(num_threads > 0, "{} threads", num_threads);
  return std::make_unique<Kernels>(MakeCpuStream(num_threads),
                                   std::make_unique<CpuKernels>(num_threads));
}

}  // namespace dsat::engine
