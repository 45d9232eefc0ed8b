// Functions of libraries that are opened when they are first used.
#ifndef DSAT_ENGINE_BACKEND_CUDA_FIND_FUNCTION_H_
#define DSAT_ENGINE_BACKEND_CUDA_FIND_FUNCTION_H_

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace dsat::engine {

// Sets `function` to the function `name` of the library, or to nullptr if there is none. In that
// case `problem`, if it is empty, becomes a message that names `library_name`.
template <typename Function>
void FindFunction(void* library, const char* library_name, const char* name, Function& function,
                  std::string& problem) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && problem.empty())
    problem = fmt::format("{} has no {}", library_name, name);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CUDA_FIND_FUNCTION_H_
