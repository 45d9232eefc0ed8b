// Hosts and their devices, as tests of placement need them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "searcher/processes/launch_host.h"

namespace dsat {

// Another host with these slots, which ssh reaches.
inline LaunchHost HostWith(const std::string& name, const std::vector<int64_t>& slots) {
  return {.name = name, .reach = {"ssh", name}, .slots = slots, .address = name + ".net"};
}

// Sets CUDA_VISIBLE_DEVICES while it lives.
class Visible {
 public:
  explicit Visible(const char* devices) {
    if (const char* const old = std::getenv(kName)) old_ = old;
    setenv(kName, devices, 1);
  }
  ~Visible() { old_ ? setenv(kName, old_->c_str(), 1) : unsetenv(kName); }

 private:
  static constexpr char kName[] = "CUDA_VISIBLE_DEVICES";
  std::optional<std::string> old_ = std::nullopt;
};

}  // namespace dsat
