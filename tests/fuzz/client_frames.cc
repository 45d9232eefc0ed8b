// The frames that a client sends to a server, before gRPC sees them.
#include "base/error.h"
#include "searcher/service/frame_check.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// A number that says how the bytes are cut; the bytes, which both sides send.
void ClientFrames(std::string_view input) {
  if (input.empty()) return;
  const size_t part = static_cast<unsigned char>(input[0]) + size_t{1};
  FrameCheck check, whole;
  const bool allowed = whole.FromClient(input.substr(1));
  bool allows = true;
  for (size_t begin = 1; allows && begin < input.size(); begin += part)
    allows = check.FromClient(input.substr(begin, part));
  DSAT_CHECK(allows == allowed && check.num_frames() == whole.num_frames());
  DSAT_CHECK(check.unfinished_bytes() == whole.unfinished_bytes());
  check.FromServer(input);
  DSAT_CHECK(check.unfinished_bytes() >= 0 && check.num_open() <= whole.num_open());
}

}  // namespace dsat::fuzz
