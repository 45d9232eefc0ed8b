// Encodes the texts of a file of JSON lines with a tokenizer.json, and decodes the tokens again:
// tokenizer_program TOKENIZER TEXTS. tokenizer_reference_test.py compares.
#include <fmt/core.h>

#include <exception>
#include <sstream>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "engine/data/tokenizer.h"

int main(int, char** argv) {
  try {
    const dsat::engine::Tokenizer tokenizer(argv[1]);
    std::istringstream lines(dsat::ReadFile(argv[2]));
    for (std::string line; std::getline(lines, line);) {
      const auto tokens = tokenizer.Encode(dsat::Json::parse(line).get<std::string>());
      const dsat::Json out = {dsat::Json(tokens), tokenizer.Decode(tokens)};
      fmt::print("{}\n", out.dump(-1, ' ', true, dsat::Json::error_handler_t::replace));
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
