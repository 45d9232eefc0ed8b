// The folder in which PyTorch compiles extensions at run time.
#pragma once

#include <string>

namespace dsat {

// Removes the files named "lock" below `folder` that no process has open and returns their number.
// PyTorch leaves such a file when it is killed while it compiles, and later processes would wait
// for it forever.
int RemoveStaleLocks(const std::string& folder);

}  // namespace dsat
