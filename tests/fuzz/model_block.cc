// The model block of an experiment file.
#include "base/json.h"
#include "engine/model/models.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The block as JSON.
void ModelBlock(std::string_view input) {
  Json block = ParseTolerantJson(input, "model");
  if (block.is_object()) {  // No other file of this machine is read.
    block.erase("config");
    block.erase("weights");
  }
  engine::MakeModel(block, "/model");
}

}  // namespace dsat::fuzz
