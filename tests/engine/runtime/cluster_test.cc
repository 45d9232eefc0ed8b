// Tests which device a driver's name stands for.
#include "engine/runtime/cluster.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace dsat::engine {
namespace {

TEST(ClusterTest, AGpuIsKnownByTheWholeNameOfItsModel) {
  for (const auto& [gpu, device] :
       std::map<std::string, std::string>{{"NVIDIA A100-SXM4-80GB", "a100"},
                                          {"Tesla V100-SXM2-32GB", "v100"},
                                          {"NVIDIA GH200 480GB", "h200"},
                                          {"NVIDIA H100 80GB HBM3", "h100"},
                                          {"NVIDIA A10", "a10"},
                                          {"NVIDIA L4", "l4"},
                                          {"NVIDIA L40S", "l40s"},
                                          {"Tesla T4", "t4"},
                                          {"NVIDIA RTX A6000", "a6000"},
                                          {"NVIDIA GeForce RTX 4090", "rtx4090"}}) {
    EXPECT_EQ(ClusterOfGpu(gpu).device, device) << gpu;
    EXPECT_EQ(PeakFlopsOf(gpu, DType::kBF16), ClusterOf(device).flops_16bit) << gpu;
  }
  for (const char* other : {"NVIDIA L40", "NVIDIA T400", "NVIDIA RTX A1000", "cpu", ""}) {
    EXPECT_EQ(ClusterOfGpu(other).device, "a100") << other;
    EXPECT_EQ(PeakFlopsOf(other, DType::kBF16), 0) << other;
  }
  for (const char* slower : {"NVIDIA A100-PCIE-40GB", "NVIDIA GeForce RTX 3090 Ti",
                             "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU"})
    EXPECT_EQ(PeakFlopsOf(slower, DType::kF32), 0) << slower;
}

}  // namespace
}  // namespace dsat::engine
