// Formats the output of dsat space.
#ifndef DSAT_CLI_SPACE_OUTPUT_H_
#define DSAT_CLI_SPACE_OUTPUT_H_

#include <string>

#include "base/json.h"
#include "searcher/search/outlook.h"
#include "searcher/search/search.h"

namespace dsat::cli {

// The places with their sizes, the keys with their values, the size of the space, what is left out
// and the most promising configurations. Lines are wrapped at `columns`; 0 = no limit.
std::string SpaceText(const Search& search, const Outlook& outlook, size_t columns);
// The same as JSON.
Json SpaceJson(const Search& search, const Outlook& outlook);

}  // namespace dsat::cli

#endif  // DSAT_CLI_SPACE_OUTPUT_H_
