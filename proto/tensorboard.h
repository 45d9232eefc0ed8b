// The records of TensorBoard's event files.
#pragma once

#include <cstdint>
#include <string>

namespace dsat {

// The first records of a file. They make TensorBoard drop the records from `first_step` on that
// earlier files of the folder have.
std::string EventFileBegin(int64_t first_step);
// A record of a scalar now.
std::string ScalarRecord(const std::string& tag, int64_t step, double value);

}  // namespace dsat
