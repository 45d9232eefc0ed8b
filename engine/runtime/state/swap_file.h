// The nvme tier: regions of one scratch file, each in host memory while it is needed.
#ifndef DSAT_ENGINE_RUNTIME_STATE_SWAP_FILE_H_
#define DSAT_ENGINE_RUNTIME_STATE_SWAP_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/arena.h"
#include "engine/core/trace.h"
#include "engine/io/async_file.h"

namespace dsat::engine {

struct SwapOptions {
  std::string folder;
  AioOptions aio;
};

// Not thread-safe.
class SwapFile {
 public:
  // With a counting arena nothing is written. Throws what AsyncFile::Create throws.
  SwapFile(const SwapOptions& options, const std::vector<int64_t>& region_bytes, Arena& host);

  // Memory for the region, contents undefined. All four: throw OutOfMemory of the host's arena.
  // REQUIRES: not in memory.
  void Create(int region);
  // The same, and the region begins to come from disk.
  void Read(int region);
  // The region begins to go to disk. REQUIRES: in memory.
  void Write(int region);
  // What was begun has ended; after a write the memory is free. Throws by file name if the disk
  // fails.
  void Await(int region);
  void Free(int region);

  // The region's memory as elements of `dtype`. REQUIRES: in memory.
  Tensor Get(int region, DType dtype) const;
  bool InMemory(int region) const { return static_cast<bool>(regions_[region].memory); }
  AioTraffic traffic() const { return file_->traffic(); }
  // From here on requests go to that lane of `trace`, each with its region in the field that
  // `about` names. nullptr: no longer.
  void set_trace(Trace* trace, const char* lane, int TraceEvent::*about);
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Region {
    int64_t offset = 0;
    int64_t bytes = 0;
    Buffer memory;
    void* data = nullptr;  // In `memory`, aligned.
    int64_t ticket = -1;   // Under way; -1: nothing.
    bool writing = false;
  };

  void AddTo(Trace& trace, int region, const AioTimes& times) const;

  Arena& host_;
  Trace* trace_ = nullptr;
  int lane_ = 0;
  int TraceEvent::*about_ = nullptr;
  int64_t size_bytes_ = 0;
  std::vector<Region> regions_;
  std::unique_ptr<AsyncFile> file_;  // Last: it ends what is under way before memory goes.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_STATE_SWAP_FILE_H_
