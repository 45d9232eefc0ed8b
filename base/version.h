// The version of this dsat.
#pragma once

namespace dsat {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace dsat
