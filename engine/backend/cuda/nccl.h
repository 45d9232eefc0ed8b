// The part of NCCL that dsat calls, by its documented names and numbers (NVIDIA's NCCL
// documentation, chapter "NCCL API"; NCCL 2.14 and later). Building does not need its header, and
// starting does not need the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backend/open_library.h"

namespace dsat::engine::nccl {

using Comm = void*;
using Stream = void*;  // A cudaStream_t.

// All others are errors.
enum Result : int { kSuccess = 0, kUnhandledCudaError = 1, kInProgress = 7 };
enum Type : int { kUint8 = 1, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };
enum Operation : int { kSum = 0 };

struct UniqueId {
  char bytes[128];
};

// The config of NCCL 2.14. Later versions accept it, because it states its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  // No call waits for other ranks: get_async_error says when it is done.
};

struct Api {
  int version = 0;  // 22809 is 2.28.9.
  int (*get_unique_id)(UniqueId*);
  int (*init)(Comm*, int size, UniqueId, int rank, Config*);
  int (*finalize)(Comm);
  int (*destroy)(Comm);
  int (*abort)(Comm);
  int (*get_async_error)(Comm, int* result);
  const char* (*error_string)(int result);
  const char* (*last_error)(Comm);  // In words, what the error was about.
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, Comm,
                    Stream);
  // `count` elements are what one rank receives, or sends.
  int (*reduce_scatter)(const void* from, void* to, size_t count, int type, int operation, Comm,
                        Stream);
  int (*all_gather)(const void* from, void* to, size_t count, int type, Comm, Stream);
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, Comm, Stream);
  int (*send)(const void* from, size_t count, int type, int peer, Comm, Stream);
  int (*receive)(void* to, size_t count, int type, int peer, Comm, Stream);
};

// Opens the library, which is never closed. Returns "", or the reason why that failed.
std::string Load(Api& api, const char* library = kNcclLibrary);

}  // namespace dsat::engine::nccl
