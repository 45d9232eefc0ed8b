// Follows a growing log and records when its lines with a marker arrived.
#ifndef DSAT_SEARCHER_PROCESSES_LINE_STAMPER_H_
#define DSAT_SEARCHER_PROCESSES_LINE_STAMPER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace dsat {

// Only the end of a longer line may be recorded.
inline constexpr size_t kMaxStampedLineBytes = 8192;

// The file with the stamped lines of a log.
std::string StampsPath(const std::string& log_path);

// Follows the log at `log_path`, which exists, and writes StampsPath(log_path). Not thread-safe.
// Throws if the file cannot be followed.
class LineStamper {
 public:
  LineStamper(const std::string& log_path, std::string marker);

  // Becomes readable when the log has grown.
  int fd() const { return inotify_.get(); }
  // Stamps the lines that have arrived; does not block.
  void Follow();

 private:
  void StampLine(std::string_view line, int64_t now_ns);

  std::string marker_;
  UniqueFd inotify_;
  UniqueFd log_;
  UniqueFd stamps_;
  std::string partial_;  // The incomplete line at the end of the log.
};

struct StampedLine {
  int64_t time_ns = 0;
  std::string line;
};
// Reads the complete lines of a stamps file; empty if there is none.
std::vector<StampedLine> ReadStamps(const std::string& stamps_path);

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_LINE_STAMPER_H_
