// The queues that the ranks of a fake NCCL work on: the host's own, where everything is done at
// once, or the emulated GPU's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

namespace fake_nccl {

// The end of the work that the queue has been given so far. It is looked up for the calling thread.
using Place = std::shared_ptr<void>;
Place PlaceIn(void* stream);

// `work` comes after all places, and what their queues are given later after `work`.
void Do(const std::vector<Place>& places, const std::function<void()>& work);

// Work that the place's queue is given later comes after the gate has been opened.
void Block(const Place& place, const std::shared_ptr<std::atomic<bool>>& gate);

}  // namespace fake_nccl
