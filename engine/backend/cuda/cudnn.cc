// cuDNN, looked up when it is first used.
#include "engine/backend/cuda/cudnn.h"

#include "engine/backend/cuda/find_function.h"
#include "engine/backend/open_library.h"

namespace dsat::engine::cudnn {
namespace {

constexpr size_t kLeastVersion = 92100;

}  // namespace

std::string Load(Api& api) {
  const OpenedLibrary opened = OpenLibrary(kCudnnLibrary);
  void* const library = opened.handle;
  if (library == nullptr) return opened.problem;
  std::string problem;
  const auto find = [&](const char* function, auto& pointer) {
    FindFunction(library, "cuDNN", function, pointer, problem);
  };
  find("cudnnGetVersion", api.version);
  find("cudnnCreate", api.create);
  find("cudnnDestroy", api.destroy);
  find("cudnnSetStream", api.set_stream);
  find("cudnnBackendCreateDescriptor", api.descriptor_create);
  find("cudnnBackendDestroyDescriptor", api.descriptor_destroy);
  find("cudnnBackendSetAttribute", api.descriptor_set);
  find("cudnnBackendGetAttribute", api.descriptor_get);
  find("cudnnBackendFinalize", api.descriptor_finalize);
  find("cudnnBackendExecute", api.execute);
  find("cudnnGetErrorString", api.error_string);
  if (problem.empty() && api.version() < kLeastVersion)
    problem =
        fmt::format("{} is cuDNN {}; expected 92100 (9.21) or newer", opened.path, api.version());
  return problem;
}

}  // namespace dsat::engine::cudnn
