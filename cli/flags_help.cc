// Formats what CLI11 knows of the commands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/table.h"
#include "cli/flags_parser.h"

namespace dsat::cli {
namespace {

struct Group {
  const char* name;
  const char* options;  // Between blanks, the first ones first.
};
// The options of a search that --help shows. --help-all shows the others in groups of their own.
constexpr std::array kFirst = {
    Group{"What to search",
          " --max-time --max-trials --run-steps --train-batch-size --zero-stages "},
    Group{"How to measure", " --confirm "},
    Group{"Where to run", " --slots --hostfile "},
    Group{"Output", " --out --db --json --help-all "},
};
// Options of this group are not shown. (Those without a group have no name in errors.)
constexpr char kHidden[] = "Hidden";

bool IsIn(const char* options, const CLI::Option* option) {
  const std::string name = option->get_name(false, true);  // "-H,--hostfile".
  const std::string last = name.substr(name.rfind(',') + 1);
  return std::string_view(options).find(" " + last + " ") != std::string_view::npos;
}

// The text in lines of at most `width` columns, each but the first one behind `indent` blanks.
std::string Wrapped(const std::string& text, size_t width, size_t indent) {
  return fmt::format("{}", fmt::join(WrapText(text, width), "\n" + std::string(indent, ' ')));
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t columns) : columns_(columns) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = help.find("\n\n\n", at)) != help.npos;)
      help.erase(at, 1);
    return help;
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (group == kHidden) return "";
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string value = option->get_option_text().empty() && option->get_type_size() != 0
                            ? option->get_type_name()
                            : option->get_option_text();
    std::string choices;
    if (const size_t colon = value.find(':'); colon != value.npos) {
      if (value[colon + 1] == '{') choices = value.substr(colon + 1);
      value.resize(colon);
    }
    const std::string name =
        make_option_name(option, is_positional) + (value.empty() ? "" : " " + value);
    std::string text = option->get_description();
    if (!choices.empty()) text += " " + choices;
    const std::string value_without = option->get_default_str();
    if (!value_without.empty() && value_without != "[]" && text.find("(default") == text.npos)
      text += " (default: " + value_without + ")";
    return Row(name, text);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return Row(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    std::string lines;
    std::istringstream text(app->get_description());
    for (std::string line; std::getline(text, line);)
      lines += (line.starts_with(' ') ? line : Wrapped(line, columns_, 0)) + "\n";
    return lines;
  }

 private:
  // The name, and the text in a column beside it, or below a long name.
  std::string Row(const std::string& name, const std::string& text) const {
    const size_t column = std::min(get_column_width(), columns_ / 2);
    const bool fits = name.size() + 3 <= column;
    return "  " + name +
           (fits ? std::string(column - name.size() - 2, ' ') : "\n" + std::string(column, ' ')) +
           Wrapped(text, columns_ - column, column) + "\n";
  }

  size_t columns_;
};

void GroupOptions(CLI::App& command, bool all) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_positional() || option == command.get_help_ptr()) continue;
    const auto* const first = std::ranges::find_if(
        kFirst, [&](const Group& group) { return IsIn(group.options, option); });
    if (first != kFirst.end()) {
      option->group(first->name);
    } else if (!all) {
      option->group(kHidden);
    } else if (option->get_group() == "Options") {
      option->group("More");
    }
  }
}

}  // namespace

void ShapeHelp(CLI::App& app, size_t columns, bool all) {
  app.formatter(std::make_shared<HelpFormatter>(columns));
  app.get_formatter()->column_width(28);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    ShapeHelp(*command, columns, all);
    command->set_help_all_flag("--help-all", "Show all options");
    if (command->get_option_no_throw("--max-concurrent-trials") != nullptr)
      GroupOptions(*command, all);
  }
}

std::string NearestOption(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      const auto commands = command->get_subcommands({});
      const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
      if (found != commands.end()) command = *found;
      continue;
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames())
        names.push_back("--" + name);
    }
    const std::string option = word.substr(0, word.find('='));
    if (std::ranges::find(names, option) != names.end()) continue;
    const std::string nearest = NearestWord(option, names);
    if (!nearest.empty()) return fmt::format(" (did you mean {}?)", nearest);
  }
  return "";
}

}  // namespace dsat::cli
