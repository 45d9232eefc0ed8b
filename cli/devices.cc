// Figures of a device's file over those of a data sheet.
#include "cli/devices.h"

#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json_block.h"

namespace dsat::cli {

engine::Cluster ClusterFor(const std::string& device) {
  if (!device.ends_with(".json")) return engine::ClusterOf(device);
  const Json file = ReadJsonFile(device);
  const JsonBlock block(file, device);
  engine::Cluster cluster = engine::ClusterOf(
      file.contains("like") ? block.Word("like", engine::ClusterNames()) : kDefaultGpu);
  std::vector<std::string> known = {"like", "ranks_per_node", "flops", "efficiency"};
  const auto text_of = [&](const char* key) {
    known.emplace_back(key);
    if (!block.Has(key)) return std::string();
    if (file[key].is_string()) return file[key].get<std::string>();
    Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected a text such as \"24GiB\"", device,
          key, file[key].dump());
  };
  const auto size = [&](const char* key, int64_t& bytes) {
    SetSize(text_of(key), device + "/" + key, bytes);
  };
  const auto speed = [&](const char* key, double& bytes_per_s) {
    std::string text = text_of(key);
    if (text.ends_with("/s")) text.resize(text.size() - 2);
    auto bytes = static_cast<int64_t>(bytes_per_s);
    SetSize(text, device + "/" + key, bytes);
    bytes_per_s = static_cast<double>(bytes);
  };
  size("device_memory", cluster.device_memory_bytes);
  size("host_memory", cluster.host_memory_bytes);
  size("disk_space", cluster.disk_bytes);
  speed("memory", cluster.device_bytes);
  speed("link", cluster.link_bytes);
  speed("network", cluster.network_bytes);
  speed("pcie", cluster.copy_bytes);
  speed("disk", cluster.disk_read_bytes);
  cluster.disk_write_bytes = block.Has("disk") ? cluster.disk_read_bytes : cluster.disk_write_bytes;
  block.CheckKeys(known);
  constexpr int64_t kMostRanks = 1'000'000;
  cluster.ranks_per_node = block.Int("ranks_per_node", cluster.ranks_per_node, 1, kMostRanks);
  cluster.efficiency = block.Number("efficiency", cluster.efficiency, 0.001, 1);
  if (block.Has("flops"))
    cluster.flops_16bit = cluster.flops_f32 = block.Number("flops", 0, 1e6, 1e18);
  return cluster;
}

void SetSize(const std::string& text, const std::string& what, int64_t& bytes) {
  if (text.empty()) return;
  bytes = ParseBytes(text, what);
  if (bytes == 0) Throw(ErrorCode::kInvalidArgument, "{}: 0; expected more", what);
}

}  // namespace dsat::cli
