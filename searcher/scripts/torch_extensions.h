// The folder where PyTorch compiles extensions at run time.
#ifndef DSAT_SEARCHER_SCRIPTS_TORCH_EXTENSIONS_H_
#define DSAT_SEARCHER_SCRIPTS_TORCH_EXTENSIONS_H_

#include <string>

namespace dsat {

// Removes the files named "lock" below `folder` that no process holds open. PyTorch leaves one
// behind when it is killed while it compiles, and every later process waits for it for ever.
// Returns how many.
int RemoveStaleLocks(const std::string& folder);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_TORCH_EXTENSIONS_H_
