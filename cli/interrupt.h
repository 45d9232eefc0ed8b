// Ctrl-C and SIGTERM: cancels what runs, cleanly, once; a second one at once.
#ifndef DSAT_CLI_INTERRUPT_H_
#define DSAT_CLI_INTERRUPT_H_

#include <functional>
#include <memory>

namespace dsat::cli {

// While alive, each SIGINT, SIGTERM or SIGHUP calls `on_interrupt` on a thread of its own (never in
// a signal handler). At most one may be alive. Must be made before any other thread starts: it
// blocks the signals in this thread and so in all later ones.
class InterruptHandler {
 public:
  explicit InterruptHandler(std::function<void()> on_interrupt);
  ~InterruptHandler();
  // True once a signal has come.
  bool interrupted() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat::cli

#endif  // DSAT_CLI_INTERRUPT_H_
