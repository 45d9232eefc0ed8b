// The folder of an attempt on a host that is not the runner's.
#ifndef DSAT_SEARCHER_HOSTS_REMOTE_FOLDER_H_
#define DSAT_SEARCHER_HOSTS_REMOTE_FOLDER_H_

#include <map>
#include <string>
#include <vector>

#include "searcher/processes/supervise_wire.h"

namespace dsat {

// The runner's folder, where this host sees it with the runner's files in it; else a temporary one
// with copies, gone with this object.
class RemoteFolder {
 public:
  // Throws kFailedPrecondition if a rank has to share the folder and this host does not see it;
  // as open(2) if there is no place for copies.
  explicit RemoteFolder(const SuperviseOrder& order);
  RemoteFolder(const RemoteFolder&) = delete;
  RemoteFolder& operator=(const RemoteFolder&) = delete;
  ~RemoteFolder();

  // `command` with what lies in the runner's folder moved here.
  RankCommand Moved(RankCommand command) const;
  // The ends of the logs by the runner's paths; empty if the runner sees the logs itself.
  std::map<std::string, std::string> Logs(const std::vector<RankCommand>& commands) const;
  const std::string& path() const { return path_; }

 private:
  std::string Moved(const std::string& path) const;

  std::string runners_;
  std::string path_;
  bool is_temporary_ = false;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_HOSTS_REMOTE_FOLDER_H_
