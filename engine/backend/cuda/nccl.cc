// NCCL, looked up when it is first used.
#include "engine/backend/cuda/nccl.h"

namespace dsat::engine::nccl {
namespace {

constexpr int kLeastVersion = 21400;  // The first with communicators that do not block.

}  // namespace

std::string Load(Api& api, const char* name) {
  OpenedLibrary library = OpenLibrary(name);
  if (library.handle == nullptr) return library.problem;
  int (*get_version)(int*) = nullptr;
  library.Find("ncclGetVersion", get_version);
  if (get_version == nullptr) return library.problem;
  if (get_version(&api.version) != kSuccess) return fmt::format("{} gives no version", name);
  if (api.version < kLeastVersion)
    return fmt::format("{} is NCCL {}; expected 21400 (2.14) or newer", name, api.version);
  library.Find("ncclGetUniqueId", api.get_unique_id);
  library.Find("ncclCommInitRankConfig", api.init);
  library.Find("ncclCommFinalize", api.finalize);
  library.Find("ncclCommDestroy", api.destroy);
  library.Find("ncclCommAbort", api.abort);
  library.Find("ncclCommGetAsyncError", api.get_async_error);
  library.Find("ncclGetErrorString", api.error_string);
  library.Find("ncclGetLastError", api.last_error);
  library.Find("ncclGroupStart", api.group_start);
  library.Find("ncclGroupEnd", api.group_end);
  library.Find("ncclAllReduce", api.all_reduce);
  library.Find("ncclReduceScatter", api.reduce_scatter);
  library.Find("ncclAllGather", api.all_gather);
  library.Find("ncclBroadcast", api.broadcast);
  library.Find("ncclSend", api.send);
  library.Find("ncclRecv", api.receive);
  return library.problem;
}

}  // namespace dsat::engine::nccl
