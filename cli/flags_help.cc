// Says what CLI11 knows of the commands: their help, and the words that are unknown to them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <memory>
#include <ranges>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/table.h"
#include "cli/flags_parser.h"

namespace dsat::cli {
namespace {

// A command with more options is shown with those of kFirst only, unless all are asked for.
constexpr int64_t kMostOptions = 12;
struct Group {
  const char* name;
  const char* options;  // Between blanks.
};
constexpr std::array kFirst = {
    Group{"What to search",
          " --max-trials --max-time --zero-stages --train-batch-size --run-steps --method "},
    Group{
        "What to run",
        " --config --against --tolerance --ds-config --model --set --micro-batch --steps "
        "--eval-interval --checkpoint-interval "},
    Group{"How to measure", " --confirm "},
    Group{"Where to run", " --slots --hostfile --device --ranks "},
    Group{"Output", " --out --stages --json --help --help-all "},
};
constexpr char kMore[] = "More";
// Options of this group are not shown. (Those without a group have no name in errors.)
constexpr char kHidden[] = "Hidden";
// A longer list of words is part of an option's text.
constexpr size_t kLongestValue = 40;

bool IsShown(const CLI::Option* option) {
  return option->nonpositional() && option->get_group() != kHidden && !option->get_group().empty();
}

// The text in lines of at most `width` columns, each but the first one behind `indent` blanks.
std::string Wrapped(const std::string& text, size_t width, size_t indent) {
  return fmt::format("{}", fmt::join(WrapText(text, width), "\n" + std::string(indent, ' ')));
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t columns) : columns_(columns) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode /*mode*/) const override {
    std::string help = Lines(app->get_description()) + make_usage(app, std::move(name));
    for (const auto& [group, options] : GroupsOf(*app)) {
      help += "\n" + group + ":\n";
      for (const CLI::Option* option : options) {
        const OptionText shown = Describe(*option);
        help += Row(fmt::format("{} {}", fmt::join(shown.names, ","), shown.value), shown.text);
      }
    }
    return help + make_subcommands(app, CLI::AppFormatMode::Normal) +
           (app->get_footer().empty() ? "" : "\n" + Lines(app->get_footer()));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return Row(command->get_name(), command->get_description());
  }

 private:
  // Lines to copy, which begin with a blank, are not wrapped.
  std::string Lines(const std::string& given) const {
    std::string lines;
    std::istringstream text(given);
    for (std::string line; std::getline(text, line);)
      lines += (line.starts_with(' ') ? line : Wrapped(line, columns_, 0)) + "\n";
    return lines;
  }
  // The name, and the text in a column beside it, or below a long name.
  std::string Row(std::string name, const std::string& text) const {
    name.erase(name.find_last_not_of(' ') + 1);
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
    if (option->get_positional()) continue;
    const std::string name = " --" + option->get_lnames().at(0) + " ";
    const auto* const first = std::ranges::find_if(kFirst, [&](const Group& group) {
      return std::string_view(group.options).find(name) != std::string_view::npos;
    });
    if (first != kFirst.end()) {
      option->group(first->name);
    } else if (!all) {
      option->group(kHidden);
    } else if (option->get_group() == "Options") {
      option->group(kMore);
    }
  }
}

}  // namespace

void ShapeHelp(CLI::App& app, size_t columns, bool all) {
  app.formatter(std::make_shared<HelpFormatter>(columns));
  app.get_formatter()->column_width(28);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    ShapeHelp(*command, columns, all);
    const bool has_many = std::ranges::count_if(command->get_options(), IsShown) > kMostOptions;
    CLI::Option* const help_all = command->set_help_all_flag("--help-all", "Show all options");
    if (has_many) {
      GroupOptions(*command, all);
    } else {
      help_all->group(kHidden);
    }
  }
}

OptionText Describe(const CLI::Option& option) {
  OptionText text;
  text.text = option.get_description();
  if (option.get_positional()) text.names = {option.get_name(true, false)};
  for (const std::string& name : option.get_snames())
    text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames())
    text.names.push_back("--" + name);
  if (option.get_type_size() != 0) text.value = option.get_type_name();
  for (const auto part : std::views::split(text.value, '|')) {
    const std::string word(part.begin(), part.end());
    if (!word.empty() && std::islower(static_cast<unsigned char>(word.back())) != 0 &&
        word.find('.') == word.npos)
      text.words.push_back(word);
  }
  if (text.value.size() > kLongestValue) {
    text.text += fmt::format(": {}", fmt::join(text.words, ", "));
    text.value = "NAME";
  }
  const std::string& value_without = option.get_default_str();
  if (!value_without.empty() && value_without != "[]" &&
      text.text.find("(default") == std::string::npos)
    text.text += " (default: " + value_without + ")";
  return text;
}

std::vector<const CLI::Option*> ArgumentsOf(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

OptionGroups GroupsOf(const CLI::App& command) {
  std::vector<std::string> names;
  for (const Group& group : kFirst)
    names.emplace_back(group.name);
  for (const std::string& group : command.get_groups()) {
    if (std::ranges::find(names, group) == names.end()) names.push_back(group);
  }
  OptionGroups groups = {{"Arguments", ArgumentsOf(command)}};
  for (const std::string& name : names) {
    groups.emplace_back(name, command.get_options([&](const CLI::Option* option) {
      return IsShown(option) && option->get_group() == name;
    }));
  }
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  return groups;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::string UnknownWord(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  std::string path = "dsat";
  const auto unknown = [&](const char* kind, const std::string& word, const char* help,
                           const std::vector<std::string>& known) {
    const std::string nearest = word.size() > 2 ? NearestWord(word, known) : "";
    return fmt::format("unknown {} \"{}\"{}; {} {} shows the {}s", kind, Printable(word),
                       nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest), path,
                       help, kind);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.size() > 1 && word[0] == '-' &&
        std::isdigit(static_cast<unsigned char>(word[1])) == 0) {
      const std::string name = word.substr(0, word[1] == '-' ? word.find('=') : 2);
      const CLI::Option* const option = command->get_option_no_throw(name);
      if (option == nullptr) {
        std::vector<std::string> known;
        for (const CLI::Option* other : command->get_options())
          std::ranges::copy(Describe(*other).names, std::back_inserter(known));
        return unknown("option", word.substr(0, word.find('=')),
                       command == &app ? "--help" : "--help-all", known);
      }
      // The next word is its value.
      if (option->get_items_expected_max() > 0 && name == word) ++i;
    } else if (const auto commands = command->get_subcommands({}); !commands.empty()) {
      const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
      if (found == commands.end()) {
        std::vector<std::string> known;
        for (const CLI::App* other : CommandsOf(*command))
          known.push_back(other->get_name());
        return unknown("command", word, "--help", known);
      }
      command = *found;
      path += " " + word;
    }
  }
  return "";
}

}  // namespace dsat::cli
