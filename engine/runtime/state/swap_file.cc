// The nvme tier.
#include "engine/runtime/state/swap_file.h"

#include <utility>

namespace dsat::engine {

SwapFile::SwapFile(const SwapOptions& options, const std::vector<int64_t>& region_bytes,
                   Arena& host)
    : host_(host), offloaded_(options.offloaded) {
  for (const int64_t bytes : region_bytes) {
    Region& region = regions_.emplace_back();
    region.offset = size_bytes_;
    region.bytes = RoundUpForAio(bytes);
    size_bytes_ += region.bytes;
  }
  const bool counting = host.kind() == Arena::Kind::kCounting;
  try {
    file_ = counting ? AsyncFile::Counting(size_bytes_, options.aio)
                     : AsyncFile::Create(options.folder, size_bytes_, options.aio);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kResourceExhausted) throw OutOfMemory(error.code(), Name(error));
    Rethrow(error);
  }
}

void SwapFile::Rethrow(const Error& error) const {
  if (error.code() == ErrorCode::kInvalidArgument) throw error;  // It names a key of /aio.
  throw Error(error.code(), Name(error));
}

std::string SwapFile::Name(const Error& error) const {
  const bool is_full = error.code() == ErrorCode::kResourceExhausted;
  return fmt::format("/zero_optimization/offload_{}/nvme_path: {}{}", offloaded_, error.what(),
                     is_full ? "; free space there, or name a folder on another disk" : "");
}

void SwapFile::Create(int region) {
  Region& r = regions_[region];
  DSAT_CHECK(!r.memory, "region {} is in memory", region);
  r.memory = host_.Allocate(r.bytes + kAioAlignment, "swap buffers");
}

void SwapFile::Read(int region) {
  Create(region);
  Region& r = regions_[region];
  r.ticket = file_->ReadAsync(r.offset, AlignForAio(r.memory.data()), r.bytes);
  r.writing = false;
}

void SwapFile::Write(int region) {
  Region& r = regions_[region];
  DSAT_CHECK(r.memory && r.ticket < 0, "region {} is not ready", region);
  r.ticket = file_->WriteAsync(r.offset, AlignForAio(r.memory.data()), r.bytes);
  r.writing = true;
}

void SwapFile::Await(int region) {
  Region& r = regions_[region];
  if (r.ticket >= 0) {
    try {
      const AioTimes times = file_->Wait(std::exchange(r.ticket, -1));
      if (trace_ != nullptr) AddTo(*trace_, region, times);
    } catch (const Error& error) {
      Rethrow(error);
    }
  }
  if (r.writing) Free(region);
  r.writing = false;
}

void SwapFile::set_trace(Trace* trace, const char* lane, int TraceEvent::*about) {
  trace_ = trace;
  about_ = about;
  if (trace != nullptr) lane_ = trace->Lane(lane);
}

void SwapFile::AddTo(Trace& trace, int region, const AioTimes& times) const {
  const Region& r = regions_[region];
  TraceEvent event = {.lane = lane_,
                      .name = r.writing ? "write" : "read",
                      .begin = times.begin,
                      .end = times.end,
                      .bytes = r.bytes};
  event.*about_ = region;
  trace.Add(std::move(event));
}

Tensor SwapFile::Get(int region, DType dtype) const {
  const Region& r = regions_[region];
  DSAT_CHECK(r.memory, "region {} is not in memory", region);
  return {AlignForAio(r.memory.data()), r.bytes / BytesPerElem(dtype), dtype};
}

}  // namespace dsat::engine
