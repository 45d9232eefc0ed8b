// Changes inputs at random, without knowing which code an input reaches.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"

namespace dsat::fuzz {

// One of `seeds` after one to four changes: bytes flipped, removed, repeated and replaced by
// numbers and signs that parsers treat specially, or by a part of another seed. REQUIRES: there is
// a seed.
std::string Mutated(const std::vector<std::string>& seeds, Rng& rng);

}  // namespace dsat::fuzz
