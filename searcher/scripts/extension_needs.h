// Lists what a machine needs to compile extensions of PyTorch, which DeepSpeed does at run time.
#ifndef DSAT_SEARCHER_SCRIPTS_EXTENSION_NEEDS_H_
#define DSAT_SEARCHER_SCRIPTS_EXTENSION_NEEDS_H_

#include <array>

namespace dsat {

struct ExtensionNeed {
  const char* fact;        // The fact by which `dsat doctor` looks for it; "" if it does not.
  const char* said;        // The words of the compiler's or PyTorch's error if it is missing.
  const char* to_install;  // The thing and where it comes from.
};

inline constexpr std::array kExtensionNeeds = {
    ExtensionNeed{"headers", "Python.h: No such file",
                  "Python.h (python3-dev, or the headers of this Python if it is not Debian's)"},
    ExtensionNeed{"compiler", "++: not found", "a C++ compiler (g++)"},
    ExtensionNeed{"", "Could not find compiler", "a C++ compiler (g++)"},
    ExtensionNeed{"ninja", "Ninja is required", "ninja (ninja-build, or pip's ninja)"},
    ExtensionNeed{"", "nvcc: not found", "the CUDA toolkit that this PyTorch was built with"},
    ExtensionNeed{"", "libaio.h: No such file", "libaio (libaio-dev)"},
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_EXTENSION_NEEDS_H_
