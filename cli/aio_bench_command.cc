// dsat aio-bench: measures the `aio` settings with which a folder is written and read fastest. The
// file has no name, so that it disappears however the process ends.
#include "cli/aio_bench_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/table.h"
#include "engine/io/async_file.h"

namespace dsat::cli {
namespace {

using engine::AioEngine;
using engine::AioOptions;
using engine::AsyncFile;

struct Measured {
  AioOptions options;
  bool direct = false;
  double read_gbps = 0;  // Medians, in 10^9 bytes/s.
  double write_gbps = 0;

  // Bytes/s of writing and reading back, which is the speed of a step that swaps all state.
  double GbpsBothWays() const { return 1 / (1 / read_gbps + 1 / write_gbps); }
};

struct Free {
  void operator()(char* data) const { std::free(data); }
};
using Memory = std::unique_ptr<char, Free>;

// Random data, which no file system can compress.
Memory MakeNoise(int64_t bytes) {
  Memory memory(
      static_cast<char*>(std::aligned_alloc(engine::kAioAlignment, static_cast<size_t>(bytes))));
  if (memory == nullptr)
    Throw(ErrorCode::kResourceExhausted, "--size: no memory for {}", HumanBytes(bytes));
  Rng rng(0, 0, "aio-bench");
  auto* words = reinterpret_cast<uint64_t*>(memory.get());
  std::generate(words, words + bytes / 8, [&rng] { return rng.NextU64(); });
  return memory;
}

int64_t SizeInBlocks(const AioBenchFlags& bench) {
  const int64_t bytes = ParseBytes(bench.size, "--size");
  if (bytes < 1)
    Throw(ErrorCode::kInvalidArgument, "--size: {}; expected at least one byte", bench.size);
  return engine::RoundUpForAio(bytes);
}

AioEngine ChosenEngine(const AioBenchFlags& bench) {
  if (bench.engine.empty()) return engine::BestAioEngine();
  return bench.engine == "threads" ? AioEngine::kThreads : AioEngine::kUring;
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

double MedianGbps(int64_t bytes, int64_t repeats, const std::function<void()>& transfer) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    transfer();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return static_cast<double>(bytes) / seconds[static_cast<size_t>(repeats / 2)] / 1e9;
}

Measured Measure(const AioBenchFlags& bench, int64_t bytes, const AioOptions& options,
                 AioEngine engine, char* memory) {
  const auto file = AsyncFile::Create(bench.folder, bytes, options, engine);
  const auto write = [&] { file->Wait(file->WriteAsync(0, memory, bytes)); };
  const auto read = [&] { file->Wait(file->ReadAsync(0, memory, bytes)); };
  write();  // The first write may also have to allocate the file's blocks.
  Measured measured{.options = options, .direct = file->direct()};
  measured.write_gbps = MedianGbps(bytes, bench.repeats, write);
  measured.read_gbps = MedianGbps(bytes, bench.repeats, read);
  return measured;
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
          {"io", measured.direct ? "direct" : "buffered"},
          {"read_gb_per_s", measured.read_gbps},
          {"write_gb_per_s", measured.write_gbps}};
}

void PrintTable(const std::vector<Measured>& results, AioEngine engine) {
  std::vector<std::vector<std::string>> cells;
  for (const Measured& each : results) {
    cells.push_back({std::to_string(each.options.block_size),
                     std::to_string(each.options.queue_depth),
                     std::to_string(each.options.intra_op_parallelism),
                     each.options.single_submit ? "true" : "false",
                     each.options.overlap_events ? "true" : "false",
                     fmt::format("{:.2f}", each.read_gbps), fmt::format("{:.2f}", each.write_gbps),
                     each.direct ? "direct" : "buffered", ToString(engine)});
  }
  fmt::print("{}",
             FormatTable({"block_size", "queue_depth", "intra_op_parallelism", "single_submit",
                          "overlap_events", "read GB/s", "write GB/s", "I/O", "engine"},
                         cells));
}

}  // namespace

int RunCommand(const Flags& flags, const AioBenchFlags& bench) {
  const int64_t bytes = SizeInBlocks(bench);
  const AioEngine engine = ChosenEngine(bench);
  const std::vector<AioOptions> sweep = Sweep(bench);
  AsyncFile::Create(bench.folder, bytes, sweep.front(),
                    engine);  // Throws early if the folder cannot be used.
  const Memory memory = MakeNoise(bytes);
  std::vector<Measured> results;
  for (const AioOptions& options : sweep) {
    results.push_back(Measure(bench, bytes, options, engine, memory.get()));
    const Measured& last = results.back();
    fmt::print(stderr, "{}/{}  {}  read {:.2f} GB/s  write {:.2f} GB/s\n", results.size(),
               sweep.size(), AioBlock(options).dump(), last.read_gbps, last.write_gbps);
  }
  std::stable_sort(results.begin(), results.end(), [](const Measured& a, const Measured& b) {
    return a.GbpsBothWays() > b.GbpsBothWays();
  });
  const Json best{{"aio", AioBlock(results.front().options)}};
  if (flags.json) {
    Json json{{"folder", bench.folder}, {"bytes", bytes},           {"repeats", bench.repeats},
              {"best", best},           {"results", Json::array()}, {"engine", ToString(engine)}};
    for (const Measured& each : results)
      json["results"].push_back(ToJson(each));
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  PrintTable(results, engine);
  fmt::print("\nFor ds_config.json, {:.2f} GB/s written and read back:\n{}\n",
             results.front().GbpsBothWays(), best.dump(2));
  return 0;
}

}  // namespace dsat::cli
