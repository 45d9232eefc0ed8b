// A text file that grows by lines, and is continued by the next run.
#ifndef DSAT_ENGINE_WORKER_LINE_FILE_H_
#define DSAT_ENGINE_WORKER_LINE_FILE_H_

#include <functional>
#include <string>

#include "base/unique_fd.h"

namespace dsat::engine {

// Errors name the file.
class LineFile {
 public:
  // Continues the file at `path`, which may not exist, with those of its lines that `keep` accepts.
  // An incomplete last line is removed.
  LineFile(std::string path, const std::function<bool(const std::string& line)>& keep);

  // Writes the line at once, and an end of line.
  void Add(const std::string& line);
  // Returns when what was added is on disk.
  void Sync();
  // True if no line was kept, and none was added.
  bool empty() const { return empty_; }

 private:
  std::string path_;
  bool empty_ = true;
  UniqueFd file_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_WORKER_LINE_FILE_H_
