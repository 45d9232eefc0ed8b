// Whether a test runs under AddressSanitizer with UBSan. Its own code is not instrumented.
#pragma once

#include <dlfcn.h>

namespace dsat {

inline bool IsSanitized() {
  return dlsym(RTLD_DEFAULT, "__ubsan_handle_dynamic_type_cache_miss_abort") != nullptr;
}

}  // namespace dsat
