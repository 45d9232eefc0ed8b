// Reads pages of dsat report with Python's strict XML parser.
#pragma once

#include <string>

#include "base/json.h"

namespace dsat {

// Whether this machine has the Python of DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set).
bool HasPython();

// The output of read_page.py about the file; null, and a failure of the test, if it is not
// well-formed.
Json ReadPage(const std::string& path);

}  // namespace dsat
