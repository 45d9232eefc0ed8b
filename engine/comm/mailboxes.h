// Messages from one rank of a shared-memory group to another.
#ifndef DSAT_ENGINE_COMM_MAILBOXES_H_
#define DSAT_ENGINE_COMM_MAILBOXES_H_

#include <cstdint>
#include <vector>

#include "engine/comm/mapping.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/shared_file.h"

namespace dsat::engine {

// One rank's view of a table with a mailbox for each ordered pair of ranks. A mailbox holds one
// message in memory of the sender, which grows to the largest message. The receiver copies each
// chunk when the sender has written it, so that the two copies overlap. Not thread-safe.
class Mailboxes {
 public:
  // The table is TableBytes(size) of `file` from `table_offset` on and initially zero. `file` and
  // `rendezvous` must outlive this object.
  Mailboxes(SharedFile& file, Rendezvous& rendezvous, int64_t table_offset, int rank, int size);
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;
  // Releases the memory of received messages, but not of messages that are still to be received.
  ~Mailboxes();

  // As ProcessGroup::Send and Recv of a group made by MakeShmGroup.
  void Send(const void* data, int64_t bytes, int peer);
  void Recv(void* data, int64_t bytes, int peer);

  static int64_t TableBytes(int size);

 private:
  struct Mailbox;
  // This rank's side of one mailbox.
  struct Side {
    Mapping memory;
    int64_t offset = -1;    // Where `memory` begins in the file.
    uint32_t progress = 0;  // The number of messages and chunks so far. Wraps around.
  };

  Mailbox& BoxOf(int sender, int receiver) const;
  void GrowTo(Side& side, int64_t bytes);

  SharedFile& file_;
  Rendezvous& rendezvous_;
  int rank_;
  int size_;
  Mapping table_;
  std::vector<Side> outgoing_;  // By peer.
  std::vector<Side> incoming_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_COMM_MAILBOXES_H_
