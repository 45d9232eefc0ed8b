// Runs work that may fail on one rank, such as writing a file, so that the others do not wait
// forever.
#pragma once

#include <exception>
#include <string>

#include "engine/comm/process_group.h"

namespace dsat::engine {

// The text that rank `root` has, on every rank. A collective call.
std::string TextOfRank(ProcessGroup& group, int root, const std::string& text);

// Throws kAborted "<what>: rank R: <message>", with the message of the failed rank R, on the ranks
// that have not failed; returns on the others. A collective call. `failure` is nullptr on a rank
// that has not failed; `last_failed` is the last rank that has.
void TellOtherRanks(ProcessGroup& group, const char* what, const std::exception_ptr& failure,
                    int last_failed);

// Runs `work` on every rank and waits for all. Rethrows the exception of this rank, or throws
// kAborted with the message of another rank on which it failed. A collective call, after which the
// group remains usable. REQUIRES: `work` issues no collectives.
template <typename Work>
void RunTogether(ProcessGroup& group, const char* what, const Work& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    const auto failed = static_cast<int>(group.MaxScalar(failure ? group.rank() + 1 : 0));
    if (failed > 0) TellOtherRanks(group, what, failure, failed - 1);
  } catch (...) {
    if (!failure) throw;  // This rank's own failure says more than that of the group.
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dsat::engine
