// main() of the test programs.
#include <gtest/gtest.h>

#include "tests/init_tests.h"

int main(int argc, char** argv) {
  dsat::InitTests(&argc, argv);
  return RUN_ALL_TESTS();
}
