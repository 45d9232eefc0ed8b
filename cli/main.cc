// main() of dsat: parses the command line (flags.h), runs the command and prints errors.
#include <malloc.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/flags.h"

int main(int argc, char** argv) {
  using dsat::cli::Flags;
  // A limit of file sizes is an error like a full disk, also in the processes that this one starts.
  signal(SIGXFSZ, SIG_IGN);
  // Otherwise glibc joins the millions of small blocks that a long log frees again and again.
  mallopt(M_MXFAST, 0);
  int failure = dsat::cli::kExitFailure;
  try {
    const std::variant<Flags, int> parsed = dsat::cli::ParseFlags(argc, argv);
    const Flags* const flags = std::get_if<Flags>(&parsed);
    if (flags != nullptr && std::holds_alternative<dsat::cli::CheckFlags>(flags->command))
      failure = dsat::cli::kExitNotChecked;
    const int exit_code =
        flags == nullptr
            ? std::get<int>(parsed)
            : std::visit([&](const auto& command) { return RunCommand(*flags, command); },
                         flags->command);
    if (std::fflush(stdout) != 0) dsat::ThrowErrno("cannot write to standard output", errno);
    if (std::ferror(stdout) != 0) {  // The reason was seen earlier.
      dsat::Throw(dsat::ErrorCode::kUnavailable,
                  "cannot write to standard output: it does not have the whole result");
    }
    return exit_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dsat: %s\n", dsat::Printable(dsat::MessageOf(error)).c_str());
    return failure;
  }
}
