// The version of this dsat.
#ifndef DSAT_BASE_VERSION_H_
#define DSAT_BASE_VERSION_H_

namespace dsat {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace dsat

#endif  // DSAT_BASE_VERSION_H_
