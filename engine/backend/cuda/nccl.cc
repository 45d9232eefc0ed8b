// NCCL, looked up when it is first used.
#include "engine/backend/cuda/nccl.h"

#include "engine/backend/cuda/find_function.h"
#include "engine/backend/open_library.h"

namespace dsat::engine::nccl {
namespace {

constexpr int kLeastVersion = 21400;  // The first with communicators that do not block.

}  // namespace

std::string Load(Api& api, const char* name) {
  const OpenedLibrary opened = OpenLibrary(name);
  void* const library = opened.handle;
  if (library == nullptr) return opened.problem;
  std::string problem;
  const auto find = [&](const char* call, auto& function) {
    FindFunction(library, "NCCL", call, function, problem);
  };
  int (*get_version)(int*) = nullptr;
  find("ncclGetVersion", get_version);
  if (get_version == nullptr) return problem;
  if (get_version(&api.version) != kSuccess) return fmt::format("{} gives no version", name);
  if (api.version < kLeastVersion)
    return fmt::format("{} is NCCL {}; expected 21400 (2.14) or newer", name, api.version);
  find("ncclGetUniqueId", api.get_unique_id);
  find("ncclCommInitRankConfig", api.init);
  find("ncclCommFinalize", api.finalize);
  find("ncclCommDestroy", api.destroy);
  find("ncclCommAbort", api.abort);
  find("ncclCommGetAsyncError", api.get_async_error);
  find("ncclGetErrorString", api.error_string);
  find("ncclGetLastError", api.last_error);
  find("ncclGroupStart", api.group_start);
  find("ncclGroupEnd", api.group_end);
  find("ncclAllReduce", api.all_reduce);
  find("ncclReduceScatter", api.reduce_scatter);
  find("ncclAllGather", api.all_gather);
  find("ncclBroadcast", api.broadcast);
  find("ncclSend", api.send);
  find("ncclRecv", api.receive);
  return problem;
}

}  // namespace dsat::engine::nccl
