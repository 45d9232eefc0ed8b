// The machines on which ranks run, and their slots.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/num_cores.h"

namespace dsat {

// A machine on which ranks run; by default, this machine.
struct LaunchHost {
  std::string name = "localhost";
  std::vector<std::string> reach = {};  // A command that runs the shell command that follows as its
                                        // last argument on the host; empty = this machine.
  std::vector<int64_t> slots = {};      // Device indices that trials may use.
  std::string devices = {};  // Its CUDA_VISIBLE_DEVICES, of which slots are indices; "" = unknown.
  std::string address = "127.0.0.1";  // The address at which other hosts reach it.
  int64_t num_cores = NumCores();
  // Variables of its ranks, overridden by their own.
  std::map<std::string, std::string> environment = {};
  bool is_listed = false;  // In a hostfile, so that ranks get its slots only.
};

// One slot of a host.
struct Slot {
  int64_t host = 0;   // Index of LaunchRequest::hosts.
  int64_t index = 0;  // Index of the device.
  auto operator<=>(const Slot&) const = default;
};

}  // namespace dsat
