// The memory file that the ranks of one host share, and who has which part of it.
#ifndef DSAT_ENGINE_COMM_SHARED_FILE_H_
#define DSAT_ENGINE_COMM_SHARED_FILE_H_

#include <atomic>
#include <cstdint>

#include "base/unique_fd.h"
#include "engine/comm/mapping.h"

namespace dsat::engine {

// One rank's view. Its first `head_bytes` have a fixed use; the rest is given out, by whichever
// rank asks, and never to two. Reserve and Release may be called by several threads.
class SharedFile {
 public:
  // `fd` is a memory file (memfd), empty when the first rank comes; it is duplicated. The same
  // head_bytes on every rank, a multiple of the page size. Throws if the file cannot grow.
  SharedFile(int fd, int64_t head_bytes);

  // A fresh range of zeroed pages, taken at once, so that a lack of memory shows here and not as a
  // SIGBUS later. Returns its offset, or -errno. `bytes` is a multiple of the page size.
  int64_t Reserve(int64_t bytes);
  // Gives the pages of a range back. No rank may read it any more.
  void Release(int64_t offset, int64_t bytes);
  Mapping Map(int64_t offset, int64_t bytes) const { return Mapping(file_.get(), offset, bytes); }
  // The head, after this object's own part of it.
  static int64_t HeadOffset();

 private:
  UniqueFd file_;
  int64_t head_end_;
  Mapping mapping_;
  std::atomic<int64_t>* given_bytes_;  // In the file. After the head; zero pages are a valid start.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_SHARED_FILE_H_
