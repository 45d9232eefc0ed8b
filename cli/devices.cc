// Figures of a device's file over those of a data sheet.
#include "cli/devices.h"

#include <algorithm>
#include <map>

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
  const std::map<std::string, int64_t*> sizes = {{"device_memory", &cluster.device_memory_bytes},
                                                 {"host_memory", &cluster.host_memory_bytes}};
  const std::map<std::string, double*> speeds = {{"memory", &cluster.device_bytes},
                                                 {"link", &cluster.link_bytes},
                                                 {"network", &cluster.network_bytes},
                                                 {"pcie", &cluster.copy_bytes}};
  std::vector<std::string> known = {"like", "ranks_per_node", "flops", "efficiency"};
  const auto text_of = [&](const std::string& key) {
    known.push_back(key);
    if (!block.Has(key)) return std::string();
    if (file[key].is_string()) return file[key].get<std::string>();
    Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected a text such as \"24GiB\"", device,
          key, file[key].dump());
  };
  for (const auto& [key, bytes] : sizes)
    SetSize(text_of(key), device + "/" + key, *bytes);
  for (const auto& [key, bytes_per_s] : speeds)
    SetSpeed(text_of(key), device + "/" + key, *bytes_per_s);
  block.CheckKeys(known);
  constexpr int64_t kMostRanks = 1'000'000;
  cluster.ranks_per_node = block.Int("ranks_per_node", cluster.ranks_per_node, 1, kMostRanks);
  cluster.efficiency = block.Number("efficiency", cluster.efficiency, 0.01, 1);
  if (block.Has("flops"))
    cluster.flops_16bit = cluster.flops_f32 = block.Number("flops", 0, 1e6, 1e18);
  return cluster;
}

void SetSize(const std::string& text, const std::string& what, int64_t& bytes) {
  if (text.empty()) return;
  bytes = ParseBytes(text, what);
  if (bytes == 0) Throw(ErrorCode::kInvalidArgument, "{}: 0; expected more", what);
}

void SetSpeed(std::string_view text, const std::string& what, double& bytes_per_s) {
  if (text.empty()) return;
  if (text.ends_with("/s")) text.remove_suffix(2);
  int64_t bytes = 0;
  SetSize(std::string(text), what, bytes);
  bytes_per_s = static_cast<double>(bytes);
}

}  // namespace dsat::cli
