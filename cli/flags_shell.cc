// dsat completion and man: what shells and `man` show of the commands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/files.h"
#include "base/regex.h"
#include "base/version.h"
#include "cli/flags_parser.h"

namespace dsat::cli {

// The files of cli/completion, which ask `dsat complete` with the words up to the cursor.
extern const char kBashCompletion[];
extern const char kZshCompletion[];
extern const char kFishCompletion[];

namespace {

struct Shell {
  const char* name;
  const char* script;
};
constexpr std::array kShells = {Shell{"bash", kBashCompletion}, Shell{"zsh", kZshCompletion},
                                Shell{"fish", kFishCompletion}};

// `text` in the language of manual pages.
std::string Roff(std::string text) {
  RE2::GlobalReplace(&text, R"(\\)", R"(\\e)");
  RE2::GlobalReplace(&text, "-", R"(\\-)");
  RE2::GlobalReplace(&text, "(?m)^[.']", R"(\\&\0)");
  return text;
}

std::string ManualPage(const CLI::App& command, const std::string& page, const std::string& typed) {
  std::string text =
      fmt::format(".TH {} 1 \"\" \"dsat {}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n[OPTIONS]",
                  Roff(page), kVersion, Roff(page), Roff(command.get_description()), Roff(typed));
  for (const CLI::Option* argument : ArgumentsOf(command)) {
    const std::string name = Roff(argument->get_name(true, false));
    text += argument->get_required() ? " " + name : " [" + name + "]";
  }
  const std::vector<const CLI::App*> commands = CommandsOf(command);
  text += commands.empty() ? "\n" : " COMMAND\n.SH COMMANDS\n";
  for (const CLI::App* each : commands) {
    text += fmt::format(".TP\n.B {}\n{} See {}(1).\n", Roff(each->get_name()),
                        Roff(each->get_description() + "."), Roff(page + "-" + each->get_name()));
  }
  for (const auto& [group, options] : GroupsOf(command)) {
    text += fmt::format(".SH \"{}\"\n", Roff(group));
    for (const CLI::Option* option : options) {
      const OptionText said = Describe(*option);
      text += fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR\n{}\n",
                          Roff(fmt::format("{}", fmt::join(said.names, ", "))), Roff(said.value),
                          Roff(said.text));
    }
  }
  return text;
}

void WriteManual(const CLI::App& command, const std::string& page, const std::string& typed,
                 const std::string& folder) {
  WriteFileAtomic(folder + "/" + page + ".1", ManualPage(command, page, typed));
  for (const CLI::App* each : CommandsOf(command))
    WriteManual(*each, page + "-" + each->get_name(), typed + " " + each->get_name(), folder);
}

}  // namespace

void AddShellCommands(Parser& parser) {
  const auto name = std::make_shared<std::string>();
  CLI::App& completion = *parser.app.add_subcommand(
      "completion", "Print what makes a shell complete the words of dsat");
  std::vector<std::string> shells;
  for (const Shell& shell : kShells)
    shells.emplace_back(shell.name);
  TakeOneOf(Add(completion, "shell", *name, "The shell that is to load it"), shells)->required();
  completion.group("Results")->final_callback([name] {
    fmt::print("{}", std::ranges::find(kShells, *name, &Shell::name)->script);
    throw CLI::Success();
  });
  CLI::App& man = *parser.app.add_subcommand("man", "Write the manual pages to a folder");
  Add(man, "folder DIR", *name, "The folder")->required();
  man.group("")->final_callback([&app = parser.app, name] {
    std::filesystem::create_directories(*name);
    WriteManual(app, "dsat", "dsat", *name);
    throw CLI::Success();
  });
}

void PrintCompletions(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  const CLI::Option* option = nullptr;  // The one whose value the next word is.
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") return;   // The user's own command.
    if (word == "=") continue;  // bash splits --option=value.
    const bool is_value = std::exchange(option, nullptr) != nullptr;
    if (is_value) continue;
    option = word.starts_with('-') ? command->get_option_no_throw(word) : nullptr;
    if (option != nullptr && option->get_items_expected_max() == 0) option = nullptr;
    const auto commands = command->get_subcommands({});
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found != commands.end()) command = *found;
  }
  if (option != nullptr) {
    for (const std::string& word : Describe(*option).words)
      fmt::print("{}\t\n", word);
  } else if (!words.empty() && words.back().starts_with('-')) {
    for (const CLI::Option* each : command->get_options()) {
      if (each->get_positional()) continue;
      fmt::print("--{}\t{}\n", each->get_lnames().at(0), each->get_description());
    }
  } else {
    for (const CLI::App* each : CommandsOf(*command))
      fmt::print("{}\t{}\n", each->get_name(), each->get_description());
    for (const CLI::Option* each : ArgumentsOf(*command)) {
      for (const std::string& word : Describe(*each).words)
        fmt::print("{}\t\n", word);
    }
  }
}

}  // namespace dsat::cli
