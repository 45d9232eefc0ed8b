// Finds out why ranks ended, from their exit codes and the ends of their logs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/trial.h"
#include "searcher/processes/exit_report.h"

namespace dsat {

// The evidence of a line of a log about the configuration or the machine.
struct LogFinding {
  TrialState state = TrialState::kFailed;  // kInfeasible: evidence against the configuration.
  std::string reason;                      // Says what happened, with the line that shows it.
  bool recurs = false;                     // As in Outcome.
};

// A thing that a machine needs to compile extensions of PyTorch, which DeepSpeed does at run time.
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

// The first of these causes that the text shows: an extension of PyTorch that does not compile
// (kFailed, which recurs), an illegal configuration, a device out of memory, the host out of memory
// (all kInfeasible), a diverged loss scale, an error of ports, the network or the disk (kFailed).
// nullopt if it shows none.
std::optional<LogFinding> ClassifyLog(std::string_view log);

// Says that the last loss that the log shows is NaN, and quotes the line; "" otherwise.
std::string DivergedLoss(std::string_view log);

// The outcome of ranks that ended without a result. `logs` are the ends of the ranks' logs by rank.
// The log of the rank that failed first is read first, and its last error or line may say in any
// words that memory is used up. In the others only evidence against the configuration counts,
// because most of their errors follow from the first failure. `process` is that of DescribeExit.
Outcome ClassifyExit(const ExitReport& exit, const std::vector<std::string>& logs,
                     std::string_view process = "rank");

// Why a process that prints nothing more may be stuck, according to the end of its log; "" if the
// log does not show it.
std::string WhyStuck(std::string_view log);

}  // namespace dsat
