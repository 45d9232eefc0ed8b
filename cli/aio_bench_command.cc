// dsat aio-bench: measures the `aio` settings with which a folder is written and read fastest.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/disk_speed.h"
#include "cli/status_line.h"
#include "engine/io/async_file.h"

namespace dsat::cli {
namespace {

using engine::AioOptions;
using engine::AsyncFile;

struct Measured {
  AioOptions options;
  DiskSpeed speed;

  // 10^9 bytes/s of writing and reading back, which is the speed of a step that swaps all state.
  double GbpsBothWays() const {
    return 1e-9 / (1 / speed.read_bytes_per_s + 1 / speed.write_bytes_per_s);
  }
};

int64_t SizeInBlocks(const AioBenchFlags& bench) {
  const int64_t bytes = ParseBytes(bench.size, "--size");
  constexpr int64_t kMost = int64_t{1} << 50;
  if (bytes < 1 || bytes > kMost) {
    Throw(ErrorCode::kInvalidArgument, "--size: {}; expected at least one byte and at most {}",
          bench.size, HumanBytes(kMost));
  }
  return engine::RoundUpForAio(bytes);
}

std::vector<AioOptions> Sweep(const AioBenchFlags& bench) {
  std::vector<AioOptions> sweep;
  for (const std::string& block_size : bench.block_sizes) {
    for (const int depth : bench.queue_depths) {
      for (const int parallelism : bench.parallelisms) {
        for (const bool single : {false, true}) {
          for (const bool overlap : {true, false}) {
            sweep.push_back(
                {ParseBytes(block_size, "--block-sizes"), depth, parallelism, single, overlap});
            AsyncFile::Counting(0,
                                sweep.back());  // Checks all settings before the first measurement.
          }
        }
      }
    }
  }
  return sweep;
}

Json AioBlock(const AioOptions& options) {
  return {{"block_size", options.block_size},
          {"queue_depth", options.queue_depth},
          {"intra_op_parallelism", options.intra_op_parallelism},
          {"single_submit", options.single_submit},
          {"overlap_events", options.overlap_events}};
}

Json ToJson(const Measured& measured) {
  return {{"aio", AioBlock(measured.options)},
          {"io", measured.speed.direct ? "direct" : "buffered"},
          {"read_gb_per_s", measured.speed.read_bytes_per_s / 1e9},
          {"write_gb_per_s", measured.speed.write_bytes_per_s / 1e9}};
}

void PrintTable(const std::vector<Measured>& results) {
  std::vector<std::vector<std::string>> cells;
  for (const Measured& each : results) {
    cells.push_back({std::to_string(each.options.block_size),
                     std::to_string(each.options.queue_depth),
                     std::to_string(each.options.intra_op_parallelism),
                     each.options.single_submit ? "true" : "false",
                     each.options.overlap_events ? "true" : "false",
                     fmt::format("{:.2f}", each.speed.read_bytes_per_s / 1e9),
                     fmt::format("{:.2f}", each.speed.write_bytes_per_s / 1e9),
                     each.speed.direct ? "direct" : "buffered"});
  }
  fmt::print("{}",
             FormatTable({"block_size", "queue_depth", "intra_op_parallelism", "single_submit",
                          "overlap_events", "read GB/s", "write GB/s", "I/O"},
                         cells));
}

}  // namespace

int RunCommand(const Flags& flags, const AioBenchFlags& bench) {
  const int64_t bytes = SizeInBlocks(bench);
  const std::vector<AioOptions> sweep = Sweep(bench);
  // Throws early if the folder cannot be used.
  AsyncFile::Create(bench.folder, bytes, sweep.front());
  const NoiseMemory memory = MakeNoise(bytes);
  std::vector<Measured> results;
  for (const AioOptions& options : sweep) {
    const DiskSpeed speed = MeasureDisk(bench.folder, memory.get(), bytes, bench.repeats, options);
    results.push_back({options, speed});
    Say(stderr, fmt::format("{}/{}  {}  read {:.2f} GB/s  write {:.2f} GB/s\n", results.size(),
                            sweep.size(), AioBlock(options).dump(), speed.read_bytes_per_s / 1e9,
                            speed.write_bytes_per_s / 1e9));
  }
  std::ranges::stable_sort(results, std::greater(), &Measured::GbpsBothWays);
  const Json best{{"aio", AioBlock(results.front().options)}};
  if (flags.json) {
    Json json{{"folder", bench.folder},
              {"bytes", bytes},
              {"repeats", bench.repeats},
              {"best", best},
              {"results", Json::array()}};
    for (const Measured& each : results)
      json["results"].push_back(ToJson(each));
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  PrintTable(results);
  fmt::print("\nFor ds_config.json, {:.2f} GB/s written and read back:\n{}\n",
             results.front().GbpsBothWays(), best.dump(2));
  return 0;
}

}  // namespace dsat::cli
