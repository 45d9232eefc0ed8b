// libFuzzer's entry points: dsat_fuzz --target=NAME [libFuzzer's flags] CORPUS...; or --list.
#include <malloc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/one_input.h"

namespace {

const dsat::fuzz::Target* target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--target=";  // libFuzzer ignores flags with two dashes.
  for (int i = 1; i < *argc; ++i) {
    const std::string_view word = (*argv)[i];
    for (const dsat::fuzz::Target& one : dsat::fuzz::Targets()) {
      if (word == "--list") std::puts(one.name);
      if (word.starts_with(kFlag) && word.substr(kFlag.size()) == one.name) target = &one;
    }
    if (word == "--list") std::exit(0);
  }
  // Memory that is free stays with the process; the kernel takes longer to give it than an input.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  if (target != nullptr) return 0;
  std::fputs("dsat_fuzz: expected --target=NAME with one of the names of --list\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsat::fuzz::RunOne(*target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
