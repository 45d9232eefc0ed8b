// The rules for search options, which hold for all methods.
#ifndef DSAT_METHODS_OPTIONS_H_
#define DSAT_METHODS_OPTIONS_H_

#include "proto/experiment.h"

namespace dsat {

// Throws kInvalidArgument "--flag: <value> is ...; expected <range>" for the first option that
// is out of range or contradicts another.
void ValidateOptions(const SearchOptions& options);

}  // namespace dsat

#endif  // DSAT_METHODS_OPTIONS_H_
