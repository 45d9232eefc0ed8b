// The folder of an attempt on a host other than the runner's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {

// The runner's folder if this host shares it and its files; otherwise a temporary folder with
// copies, which the destructor removes.
class RemoteFolder {
 public:
  // Throws kFailedPrecondition if a rank requires a shared folder and this host does not share it;
  // as open(2) if the copies cannot be written.
  explicit RemoteFolder(const SuperviseOrder& order);

  // `command` with paths in the runner's folder changed to this folder.
  RankCommand Moved(RankCommand command) const;
  // The ends of the logs by the runner's paths; empty if the folder is shared.
  std::map<std::string, std::string> Logs(const std::vector<RankCommand>& commands) const;
  const std::string& path() const { return path_; }

 private:
  std::string Moved(const std::string& path) const;

  std::string runners_;
  std::string path_;
  std::optional<TemporaryFolder> copies_;
};

}  // namespace dsat
