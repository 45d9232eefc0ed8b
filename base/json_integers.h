// Integers of JSON that another program has written.
#ifndef DSAT_BASE_JSON_INTEGERS_H_
#define DSAT_BASE_JSON_INTEGERS_H_

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace dsat {

// The integer in `json`. The library's own conversion makes 5 of 5.5 and is undefined for 1e300.
// Throws Json::type_error for everything that is not written as an integer.
inline int64_t IntegerIn(const Json& json) {
  return json.get_ref<const Json::number_integer_t&>();
}

// The integers of an array. Throws as IntegerIn.
inline std::vector<int64_t> IntegersIn(const Json& json) {
  std::vector<int64_t> integers;
  for (const Json& item : json.get_ref<const Json::array_t&>())
    integers.push_back(IntegerIn(item));
  return integers;
}

}  // namespace dsat

#endif  // DSAT_BASE_JSON_INTEGERS_H_
