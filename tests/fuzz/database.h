// Databases for the targets that read them.
#pragma once

#include <string>

#include "db/store.h"

namespace dsat::fuzz {

// The bytes of a database with one experiment, its events and trials.
const std::string& SampleDatabase();

// Reads all that dsat reads of a database. Throws Error.
void ReadWholeDatabase(const Store& store);

}  // namespace dsat::fuzz
