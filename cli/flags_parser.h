// Shared by the files that define the commands' options for CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags.h"

namespace dsat::cli {

// Checks of options. An error names the option and the value: "--steps: 0; expected a whole number
// of 1 or more". CLI11's own range checks would print their limits with hundreds of digits.
// `positive`: not 0, and of whole numbers none so large that sums and products of a few overflow.
CLI::Validator WholeNumber(bool positive);
CLI::Validator Number(bool positive);
// Seconds, or a number with a unit: 90, 90s, 10m, 2h. A transform: it leaves the seconds.
CLI::Validator Duration();

// Lets an option take one of some words only. An error names the nearest one.
CLI::Option* TakeOneOf(CLI::Option* option, const std::vector<std::string>& words);

template <typename T>
inline constexpr bool kIsWhole =
    std::same_as<T, int64_t> || std::same_as<T, std::optional<int64_t>>;

// Adds an option or an argument by its names and, after a blank, the name of its value, such as
// "-H,--hostfile FILE"; a number needs no name. Words of the name in lower case are values:
// "N|keep|any".
template <typename T>
CLI::Option* Add(CLI::App& app, const std::string& names, T& value, const std::string& text) {
  const size_t blank = names.find(' ');
  CLI::Option* const option = app.add_option(names.substr(0, blank), value, text);
  return option->type_name(blank != names.npos ? names.substr(blank + 1)
                           : kIsWhole<T>       ? "N"
                                               : "NUMBER");
}

// Adds an option whose number is at least 1 if it is whole, else above 0.
template <typename T>
CLI::Option* AddPositive(CLI::App& app, const std::string& name, T& value,
                         const std::string& text) {
  return Add(app, name, value, text)->check(kIsWhole<T> ? WholeNumber(true) : Number(true));
}

// Adds an option whose number may also be 0.
template <typename T>
CLI::Option* AddNonNegative(CLI::App& app, const std::string& name, T& value,
                            const std::string& text) {
  return Add(app, name, value, text)->check(kIsWhole<T> ? WholeNumber(false) : Number(false));
}

// Holds the flags of the chosen command.
struct Parser {
  CLI::App app;
  std::string group;  // The heading in the help of the commands that are added next.
  Flags flags;
  std::vector<std::string> command;  // The words behind "--", for those that take a command.

  // Adds a command below `parent` with flags of its own, which CLI11 fills in. They become
  // Flags::command if it is chosen.
  template <typename T>
  std::pair<CLI::App&, T&> AddTo(CLI::App& parent, const std::string& name,
                                 const std::string& summary, bool uses_db = true) {
    CLI::App& sub = *parent.add_subcommand(name, summary);
    const auto own = std::make_shared<T>();
    sub.group(group);
    sub.final_callback([this, own] { flags.command = *own; });
    if (uses_db) {
      // CLI11 would let the variable replace the option of a subcommand.
      cli::Add(sub, "--db FILE", flags.db, "Database file (default: $DSAT_DB, or else dsat.db)");
    }
    sub.add_flag("--json", flags.json, "Print the result as JSON to standard output");
    return {sub, *own};
  }
  template <typename T>
  std::pair<CLI::App&, T&> Add(const std::string& name, const std::string& summary,
                               bool uses_db = true) {
    return AddTo<T>(app, name, summary, uses_db);
  }
};

// The commands of searches, and those of experiments whose trials are run by other programs.
void AddSearchCommands(Parser& parser);
void AddAskTellCommands(Parser& parser);
// Training, and the commands before and after it.
void AddTrainingCommands(Parser& parser);

// Options of several commands.
void AddConfig(CLI::App& app, std::string& config, std::string& model_dir);
// The time limits of a trial or of the full run.
void AddTimeouts(CLI::App& app, RunFlags& run);
// Whether the filters of hosts also have DeepSpeed's names, --include and --exclude.
enum class FilterNames { kLong, kAndDeepSpeeds };
// Adds the options that choose the hosts on which trials run, and returns --hostfile.
CLI::Option* AddHosts(CLI::App& app, HostFlags& hosts, FilterNames names);
// Throws kInvalidArgument if these options contradict each other.
void CheckHostFlags(const HostFlags& hosts);

// Gives `app` and its subcommands help of at most `columns` columns. A command with many options
// shows those that few people need only if `all` is true; all commands get a flag --help-all.
void ShapeHelp(CLI::App& app, size_t columns, bool all);

// The text of an option in help, completion and manual pages.
struct OptionText {
  std::vector<std::string> names;  // "-H", "--hostfile"; an argument has one without a dash.
  std::string value;               // "FILE", "csv|json"; "" if it takes none.
  std::string text;                // Also names the default.
  std::vector<std::string> words;  // The values that `value` names: "csv", "json".
};
OptionText Describe(const CLI::Option& option);
std::vector<const CLI::Option*> ArgumentsOf(const CLI::App& command);
// The options of a command below the headings of the help, and its arguments below "Arguments".
using OptionGroups = std::vector<std::pair<std::string, std::vector<const CLI::Option*>>>;
OptionGroups GroupsOf(const CLI::App& command);
// The commands of dsat, or those below one of them, that the help shows.
std::vector<const CLI::App*> CommandsOf(const CLI::App& app);

// Names the first word that is no command or option, and the nearest one; "" if there is none.
std::string UnknownWord(const CLI::App& app, int argc, const char* const* argv);

// flags_shell.cc: "completion", and "man", which the help does not show.
void AddShellCommands(Parser& parser);
// Prints what the last of `words`, which follow "dsat", may become: a line for each, with its text
// after a tab. It prints nothing where a shell proposes files.
void PrintCompletions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace dsat::cli
