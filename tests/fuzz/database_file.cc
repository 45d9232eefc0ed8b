// A damaged database.
#include <chrono>
#include <cstdint>
#include <string>

#include "tests/fuzz/database.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// Changes of a whole database, 5 bytes each: where (4 bytes), and the new byte. A last one of fewer
// bytes cuts the file off there. An input that begins with SQLite's magic number is the whole file.
void DatabaseFile(std::string_view input) {
  std::string content = SampleDatabase();
  if (input.starts_with("SQLite format 3")) {
    content = input;
  } else {
    const auto number = [&input](size_t at) {
      return static_cast<uint32_t>(static_cast<uint8_t>(input[at]));
    };
    for (; input.size() >= 5; input.remove_prefix(5)) {
      const uint32_t at = number(0) | number(1) << 8 | number(2) << 16 | number(3) << 24;
      content[at % content.size()] = input[4];
    }
    if (input.size() >= 3)
      content.resize((number(0) | number(1) << 8 | number(2) << 16) % content.size());
  }
  ReadWholeDatabase(Store::Open(WriteInput("dsat.db", content), Store::Mode::kReadOnly,
                                std::chrono::milliseconds(10)));
}

}  // namespace dsat::fuzz
