// Runs work that may fail on one rank, such as writing a file, so that the others do not wait
// forever.
#ifndef DSAT_ENGINE_COMM_RUN_TOGETHER_H_
#define DSAT_ENGINE_COMM_RUN_TOGETHER_H_

#include <exception>

#include "base/error.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// Runs `work` on every rank and waits for all. Rethrows the exception of this rank, or throws
// kAborted naming `what` and a rank if it failed on another rank. A collective call, after which
// the group remains usable. REQUIRES: `work` issues no collectives.
template <typename Work>
void RunTogether(ProcessGroup& group, const char* what, const Work& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  const auto failed = static_cast<int>(group.MaxScalar(failure ? group.rank() + 1 : 0));
  if (failure) std::rethrow_exception(failure);
  if (failed > 0) Throw(ErrorCode::kAborted, "{}: failed on rank {}", what, failed - 1);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_RUN_TOGETHER_H_
