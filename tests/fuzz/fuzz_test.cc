// Every parser of outside input ends normally or with an Error: for the inputs of corpus/, among
// which are all that ever failed, and for mutations of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

static void PrintTo(const Target& target, std::ostream* out) {
  *out << target.name;
}

namespace {

// More of them for a longer search without libFuzzer.
int NumMutations() {
  const char* const given = std::getenv("DSAT_FUZZ_MUTATIONS");
  return given == nullptr ? 300 : std::atoi(given);
}

std::vector<std::string> SeedsOf(const Target& target) {
  std::vector<std::filesystem::path> paths;
  const std::string folder = DSAT_SOURCE_DIR "/tests/fuzz/corpus/";
  for (const auto& entry : std::filesystem::directory_iterator(folder + target.name))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths)
    seeds.push_back(ReadFile(path.string()));
  return seeds;
}

class FuzzTest : public testing::TestWithParam<Target> {};

// False, and a failure that shows the input, if the target throws something else than Error.
bool EndsOrdinarily(const Target& target, const std::string& input) {
  try {
    RunOne(target, input);
    return true;
  } catch (const std::exception& e) {
    const char* const keep = std::getenv("DSAT_FUZZ_KEEP");
    if (keep != nullptr) WriteFileAtomic(keep, input);
    ADD_FAILURE() << target.name << " throws \"" << e.what() << "\" for the input\n"
                  << Printable(input)
                  << "\nDSAT_FUZZ_KEEP=PATH writes it to a file, which belongs into "
                     "tests/fuzz/corpus/"
                  << target.name;
  }
  return false;
}

TEST_P(FuzzTest, KnownInputsAndMutationsOfThemEndNormallyOrWithAnError) {
  const Target& target = GetParam();
  const std::vector<std::string> seeds = SeedsOf(target);
  ASSERT_FALSE(seeds.empty()) << target.name;
  for (const std::string& seed : seeds)
    ASSERT_TRUE(EndsOrdinarily(target, seed));
  Rng rng(1, 0, target.name);
  for (int i = 0; i < NumMutations(); ++i)
    ASSERT_TRUE(EndsOrdinarily(target, Mutated(seeds, rng)));
}

// A seed that is refused at its first byte would test nothing.
TEST_P(FuzzTest, SomeKnownInputIsRead) {
  const std::vector<std::string> seeds = SeedsOf(GetParam());
  EXPECT_TRUE(std::any_of(seeds.begin(), seeds.end(), [](const std::string& seed) {
    try {
      GetParam().run(seed);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Parsers, FuzzTest, testing::ValuesIn(Targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace dsat::fuzz
