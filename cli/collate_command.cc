// dsat collate: converts a checkpoint of any number of ranks to one file that other programs read.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/status_line.h"
#include "engine/files/collate.h"

namespace dsat::cli {
namespace {

Json ToJson(const engine::CollateResult& result, const CollateFlags& flags) {
  return {{"out", flags.out},
          {"tag", result.tag},
          {"format", "safetensors"},
          {"dtype", flags.dtype},
          {"tensors", result.num_tensors},
          {"elements", result.num_elems},
          {"bytes", result.file_bytes}};
}

}  // namespace

int RunCommand(const Flags& flags, const CollateFlags& collate) {
  std::atomic<bool> interrupted = false;
  const InterruptHandler on_interrupt([&] { interrupted = true; });
  engine::CollateResult result;
  try {
    StatusLine line;
    result = engine::Collate(
        {.dir = collate.checkpoint_dir,
         .tag = collate.tag,
         .out = collate.out,
         .dtype = collate.dtype,
         .force = collate.force},
        [&](int64_t done_bytes, int64_t all_bytes) {
          if (interrupted) Throw(ErrorCode::kCancelled, "interrupted");
          line.Draw({fmt::format("collate: {:.0f} % of {}",
                                 100.0 * static_cast<double>(done_bytes) /
                                     static_cast<double>(std::max<int64_t>(all_bytes, 1)),
                                 HumanBytes(all_bytes))});
        });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    Say(stderr, fmt::format("interrupted; {} was not written\n", Printable(collate.out)));
    return kExitInterrupted;
  }
  if (flags.json) {
    fmt::print("{}\n", ToJson(result, collate).dump(2));
  } else {
    fmt::print("{}: {} tensors, {} elements, {}, {}, of checkpoint {}\n", collate.out,
               result.num_tensors, result.num_elems, collate.dtype, HumanBytes(result.file_bytes),
               result.tag);
  }
  return 0;
}

}  // namespace dsat::cli
