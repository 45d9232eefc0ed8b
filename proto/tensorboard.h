// The records of which TensorBoard's event files consist.
#ifndef DSAT_PROTO_TENSORBOARD_H_
#define DSAT_PROTO_TENSORBOARD_H_

#include <cstdint>
#include <string>

namespace dsat {

// The first records of a file. TensorBoard drops what earlier files of the folder have from
// `first_step` on.
std::string EventFileBegin(int64_t first_step);
// A record of a scalar now.
std::string ScalarRecord(const std::string& tag, int64_t step, double value);

}  // namespace dsat

#endif  // DSAT_PROTO_TENSORBOARD_H_
