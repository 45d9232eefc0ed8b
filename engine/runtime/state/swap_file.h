// The nvme tier: regions of one scratch file, each of which is in host memory while it is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/core/arena.h"
#include "engine/core/trace.h"
#include "engine/io/async_file.h"

namespace dsat::engine {

struct SwapOptions {
  std::string folder;
  AioOptions aio;
  std::string offloaded;  // "optimizer" or "param": whose nvme_path the folder is.
};

// Not thread-safe.
class SwapFile {
 public:
  // Writes nothing with a counting arena. Throws as AsyncFile::Create, naming the folder's key.
  SwapFile(const SwapOptions& options, const std::vector<int64_t>& region_bytes, Arena& host);

  // Allocates memory for the region; its contents are undefined. Create, Read, Write and Await
  // throw OutOfMemory of the host's arena. REQUIRES: not in memory.
  void Create(int region);
  // Creates the region's memory and starts to read the region from disk.
  void Read(int region);
  // Starts to write the region to disk. REQUIRES: in memory.
  void Write(int region);
  // Waits until the read or write has ended; frees the memory after a write. Throws an Error that
  // names the file if the disk fails.
  void Await(int region);
  void Free(int region) { regions_[region].memory.Free(); }

  // The region's memory as elements of `dtype`. REQUIRES: in memory.
  Tensor Get(int region, DType dtype) const;
  bool InMemory(int region) const { return static_cast<bool>(regions_[region].memory); }
  AioTraffic traffic() const { return file_->traffic(); }
  // From here on `trace` records requests on that lane, each with its region in the field `about`.
  // nullptr ends it.
  void set_trace(Trace* trace, const char* lane, int TraceEvent::*about);
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Region {
    int64_t offset = 0;
    int64_t bytes = 0;
    Buffer memory;        // The region begins at its first aligned address.
    int64_t ticket = -1;  // Under way; -1: nothing.
    bool writing = false;
  };

  [[noreturn]] void Rethrow(const Error& error) const;
  std::string Name(const Error& error) const;
  void AddTo(Trace& trace, int region, const AioTimes& times) const;

  Arena& host_;
  std::string offloaded_;
  Trace* trace_ = nullptr;
  int lane_ = 0;
  int TraceEvent::*about_ = nullptr;
  int64_t size_bytes_ = 0;
  std::vector<Region> regions_;
  std::unique_ptr<AsyncFile> file_;  // Last: it ends what is under way before memory goes.
};

}  // namespace dsat::engine
