// Work that may fail on one rank, such as writing a file, without leaving the others waiting.
#ifndef DSAT_ENGINE_COMM_RUN_TOGETHER_H_
#define DSAT_ENGINE_COMM_RUN_TOGETHER_H_

#include <exception>

#include "base/error.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {

// Runs `work` on this rank and waits for the others. Throws what it threw, or kAborted naming
// `what` and a rank if it went wrong there only. A collective call, after which the group can be
// used whatever happened. REQUIRES: `work` issues no collectives.
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
  if (failed > 0) Throw(ErrorCode::kAborted, "{}: went wrong on rank {}", what, failed - 1);
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_RUN_TOGETHER_H_
