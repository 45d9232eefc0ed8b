// The lists of docs/ds_config.md, generated from the key table and the rules.
#pragma once

#include <string>

#include "engine/config/key_table.h"

namespace dsat::engine {

// One list for the keys of the top level and one for each section, under headings.
std::string KeyDocs(const KeyTable& keys);

// One list.
std::string RuleDocs();

}  // namespace dsat::engine
