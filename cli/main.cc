// dsat: the command line. One table of commands (flags.cc), one catch (here).
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "cli/flags.h"

int main(int argc, char** argv) {
  using dsat::cli::Flags;
  try {
    const std::variant<Flags, int> parsed = dsat::cli::ParseFlags(argc, argv);
    if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
    const Flags& flags = std::get<Flags>(parsed);
    return std::visit([&](const auto& command) { return RunCommand(flags, command); },
                      flags.command);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dsat: %s\n", error.what());
    return dsat::cli::kExitFailure;
  }
}
