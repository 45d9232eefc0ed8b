// The main function of the `dsat supervise` process.
#ifndef DSAT_SEARCHER_PROCESSES_SUPERVISOR_H_
#define DSAT_SEARCHER_PROCESSES_SUPERVISOR_H_

namespace dsat {

// Reads the commands of the ranks from standard input, runs them and writes the report to standard
// output (supervise_wire.h). Returns the exit code. Linux only: PR_SET_CHILD_SUBREAPER,
// PR_SET_PDEATHSIG, pidfds. REQUIRES: the process has one thread.
int SuperviseMain();

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_SUPERVISOR_H_
