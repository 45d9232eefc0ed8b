// Whether a test runs under AddressSanitizer with UBSan. Its own code is not instrumented.
#ifndef DSAT_TESTS_SANITIZERS_H_
#define DSAT_TESTS_SANITIZERS_H_

#include <dlfcn.h>

namespace dsat {

inline bool IsSanitized() {
  return dlsym(RTLD_DEFAULT, "__ubsan_handle_dynamic_type_cache_miss_abort") != nullptr;
}

}  // namespace dsat

#endif  // DSAT_TESTS_SANITIZERS_H_
