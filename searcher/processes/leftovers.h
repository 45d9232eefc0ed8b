// Files that killed ranks leave behind: the buffers in /dev/shm of DeepSpeed's CPU collectives, and
// locks in the folder in which PyTorch compiles extensions at run time.
#pragma once

#include <cstdint>
#include <string>

namespace dsat {

// The size of one rank's buffer (deepspeed/ops/csrc/cpu/comm/shm.cpp).
inline constexpr int64_t kSharedBufferBytes = 69'206'024;

// Removes the buffers in `folder` of this user's ranks whose rendezvous was at MASTER_PORT `port`
// and whose processes are gone, and returns their bytes. DeepSpeed never removes them.
int64_t RemoveSharedBuffers(int64_t port, const std::string& folder = "/dev/shm");

// A line that says that /dev/shm has too little space for `num_ranks` ranks; "" if it has enough.
std::string SharedMemoryShortage(int64_t num_ranks);

// Removes the files named "lock" below `folder` that no process has open and returns their number.
// PyTorch leaves such a file when it is killed while it compiles, and later processes would wait
// for it forever.
int RemoveStaleLocks(const std::string& folder);

}  // namespace dsat
