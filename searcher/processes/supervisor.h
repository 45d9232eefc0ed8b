// The main function of the `dsat supervise` process.
#pragma once

namespace dsat {

// Reads the commands of the ranks from standard input, runs them and writes the report to standard
// output (supervise_wire.h). Ends the process at once: the runner waits for it, and a search for
// leaks, which sanitizers do at exit, can last for 25 s. Throws if the system refuses something.
// Linux only: PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, pidfds. REQUIRES: the process has one
// thread.
[[noreturn]] void SuperviseMain();

}  // namespace dsat
