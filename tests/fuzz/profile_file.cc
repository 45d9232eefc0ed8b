// The profile of a model that a user gives.
#include "base/json.h"
#include "proto/trial.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The text of the file.
void ProfileFile(std::string_view input) {
  ProfileFromJson(ParseTolerantJson(input, "profile.json"), "profile.json");
}

}  // namespace dsat::fuzz
