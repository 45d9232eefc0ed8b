// Names of the environment variables that configure a rank: launchers set them, ranks read them.
#ifndef DSAT_ENGINE_RUNTIME_RANK_VARIABLES_H_
#define DSAT_ENGINE_RUNTIME_RANK_VARIABLES_H_

namespace dsat::engine {

// Beside RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, as torch's launchers set them:
inline constexpr char kEnvToken[] = "DSAT_TOKEN";             // The secret of this trial's ranks.
inline constexpr char kEnvGroupFd[] = "DSAT_GROUP_FD";        // Memory file that the ranks share.
inline constexpr char kEnvNumThreads[] = "DSAT_NUM_THREADS";  // Compute threads of this rank.

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_RUNTIME_RANK_VARIABLES_H_
