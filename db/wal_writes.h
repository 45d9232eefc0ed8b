// Hands the log of SQLite's WAL mode to the kernel in one write per commit.
#ifndef DSAT_DB_WAL_WRITES_H_
#define DSAT_DB_WAL_WRITES_H_

#include <cstdint>
#include <string>

namespace dsat {

// The name of SQLite's file system in which JoinedWrites works.
const char* WalWritesVfs();

// While it exists, a COMMIT in this thread writes its pages to the -wal file at once. SQLite itself
// writes the header and the content of each page for itself, which takes many times as long on a
// disk whose writes are slow. REQUIRES: there is no other one in this thread.
class JoinedWrites {
 public:
  JoinedWrites();
  ~JoinedWrites();  // Drops what a COMMIT that has failed did not come to write.
  JoinedWrites(const JoinedWrites&) = delete;
  JoinedWrites& operator=(const JoinedWrites&) = delete;

 private:
  friend struct WalFile;
  std::string held_;
  int64_t held_at_ = 0;        // Its offset in the file.
  bool is_last_page_ = false;  // The last header was that of a commit's last page.
  bool is_written_ = false;    // Whatever follows corrects what is written.
};

}  // namespace dsat

#endif  // DSAT_DB_WAL_WRITES_H_
