// Prepares a test program before it runs its tests.
#pragma once

namespace dsat {

// Initializes GoogleTest from the command line. Ends the program with status 1 if a pattern of
// --gtest_filter matches no test, and with status 77, which CTest reports as skipped, if
// DSAT_TEST_DEVICE is "cuda" and this machine has no GPU. Where it has one, the tests run, and fail
// if they cannot use it.
void InitTests(int* argc, char** argv);

}  // namespace dsat
