// Parses the command line, and defines the options of the commands that show results.
#include "cli/flags_parser.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/version.h"
#include "cli/status_line.h"
#include "methods/methods.h"

namespace dsat::cli {

extern const char kCommit[];  // " (COMMIT)", or "" if it is unknown (CMakeLists.txt).

namespace {

// The columns of help in a terminal, and where there is none.
constexpr size_t kLeastColumns = 60, kMostColumns = 100, kPageColumns = 80;

constexpr char kIntro[] =
    "Finds the fastest DeepSpeed-style training configuration for a model on your machines.\n\n"
    "  dsat auto -- deepspeed --num_gpus 4 train.py --deepspeed ds_config.json\n"
    "                                search; writes the best ds_config.json\n"
    "  dsat auto deepspeed.yaml      the same for an experiment file\n"
    "  dsat show 1                   every trial of experiment 1\n"
    "  dsat train deepspeed.yaml --ds-config dsat-out/1/ds_config.json";

void AddExperimentOrNewest(CLI::App& app, std::string& experiment) {
  Add(app, "experiment NUMBER|NAME", experiment, "The experiment (default: the newest one)");
}

void AddResultCommands(Parser& parser) {
  parser.group = "Results";
  parser.Add<ListFlags>("list", "List all experiments");
  auto [show, shown] = parser.Add<ShowFlags>("show", "Show one experiment and all its trials");
  AddExperimentOrNewest(show, shown.experiment);
  auto [best, flags] =
      parser.Add<BestFlags>("best", "Show the best configuration of an experiment");
  AddExperimentOrNewest(best, flags.experiment);
  Add(best, "--out DIR", flags.out_dir,
      "Write ds_config.json, metrics.json and command.txt to this folder");
  auto [report, reported] = parser.Add<ReportFlags>(
      "report",
      "Write one HTML page with the answer, plots and all trials, or compare two searches");
  AddExperimentOrNewest(report, reported.experiment);
  CLI::Option* const other =
      Add(report, "other NUMBER|NAME", reported.other,
          "A later experiment, for a page that compares the two: before and after an upgrade");
  report
      .add_flag("--watch", reported.watch,
                "Write the page every 5 seconds while the search runs; it refreshes itself")
      ->excludes(other);
  Add(report, "--out FILE.html", reported.out, "The file (default: dsat-report-NUMBER.html)");
  auto [query, asked] =
      parser.Add<QueryFlags>("query", "Run read-only SQL on the database (docs/schema.md)");
  Add(query, "sql SQL", asked.sql, "One SELECT statement")->required();
  AddPositive(query, "--max-seconds SECONDS", asked.max_seconds, "Give up after this time");
  AddPositive(query, "--max-rows", asked.max_rows, "Give up if the answer has more rows");
  auto [exporter, exported] =
      parser.Add<ExportFlags>("export", "Print or send all trials of an experiment");
  AddExperimentOrNewest(exporter, exported.experiment);
  CLI::Option* const format = TakeOneOf(
      Add(exporter, "--format", exported.format, "The format (default: csv)"), {"csv", "json"});
  TakeOneOf(Add(exporter, "--to", exported.to,
                "Write them by the packages of python3 to a tracker of experiments, or to a file "
                "in this folder (docs/python.md)"),
            {"mlflow", "wandb", "trackio", "parquet"})
      ->excludes(format)
      ->excludes(exporter.get_option("--json"));
}

// Throws kInvalidArgument if options of searches, or those of hosts, contradict each other.
template <typename Command>
void CheckOptions(const Command& command) {
  if constexpr (requires { command.options; }) ValidateOptions(command.options);
  if constexpr (requires { command.run; }) CheckHostFlags(command.run.hosts);
}

// The same for the options of one command, and if something is missing.
template <typename Command>
void CheckUsage(const Command&) {}

void CheckUsage(const SearchFlags& search) {
  if (search.config.empty() && search.command.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: nothing to tune; expected an experiment file or, behind --, a command, such as "
          "dsat {} -- deepspeed --num_gpus 4 train.py --deepspeed ds_config.json",
          search.method, search.method);
  }
}

void CheckUsage(const InitFlags& init) {
  if (!init.command.empty()) return;
  Throw(ErrorCode::kInvalidArgument,
        "init: no command; expected one behind --, such as dsat init -- deepspeed --num_gpus 4 "
        "train.py --deepspeed ds_config.json");
}

void CheckUsage(const SpaceFlags& space) {
  CheckUsage(space.search);
  CheckOptions(space.search);
}

void CheckUsage(const ResumeFlags& resume) {
  SearchOptions options;
  options.max_trials = resume.limits.max_trials.value_or(options.max_trials);
  ValidateOptions(options);  // The other limits are checked as they are read.
}

void CheckUsage(const TellFlags& tell) {
  if (tell.metrics == "-" && tell.profile == "-")
    Throw(ErrorCode::kInvalidArgument,
          "tell: --metrics and --profile cannot both read standard input; name a file for one");
  if (!tell.metrics.empty() || tell.infeasible || tell.failed || !tell.profile.empty()) return;
  Throw(ErrorCode::kInvalidArgument,
        "tell: say how trial {} ended: --metrics FILE, --infeasible REASON or --failed REASON",
        tell.trial);
}

// Refuses empty values, which come from variables of a script that are not set.
void RefuseEmptyValues(CLI::App& app) {
  // Texts, and what DeepSpeed's launcher may be given empty.
  constexpr std::array kMayBeEmpty = {"--prompt",     "--infeasible",    "--failed",
                                      "--slurm-args", "--include-hosts", "--exclude-hosts",
                                      "--master_addr"};
  for (CLI::Option* option : app.get_options()) {
    const bool has_value = option->get_items_expected_max() > 0;
    if (has_value && std::ranges::find(kMayBeEmpty, option->get_name()) == kMayBeEmpty.end())
      option->check([](const std::string& text) { return text.empty() ? "it is empty" : ""; }, "");
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    RefuseEmptyValues(*command);
}

// Takes the words behind "--" away if the command of dsat is one that takes the user's own command.
void TakeCommand(int* argc, const char* const* argv, Parser& parser) {
  std::vector<std::string> takers = {"init", "space", "estimate"};
  for (const MethodInfo& method : Methods())
    takers.push_back(method.name);
  if (*argc < 2 || std::ranges::find(takers, argv[1]) == takers.end()) return;
  const char* const* const end = argv + *argc;
  const char* const* const dashes = std::find(argv + 2, end, std::string_view("--"));
  if (dashes == end) return;
  parser.command.assign(dashes + 1, end);
  *argc = static_cast<int>(dashes - argv);
}

// The arguments, the last one first, as CLI11 takes them. It would read the word after "--out=" as
// the value.
std::vector<std::string> Words(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = argc - 1; i > 0; --i) {
    std::string word = argv[i];
    if (word.starts_with("--") && word.find('=') == word.size() - 1) {
      word.pop_back();
      words.emplace_back();
    }
    words.push_back(std::move(word));
  }
  return words;
}

// The options of these names that were given, quoted for a shell, each with a blank before it.
std::string GivenOptions(const CLI::App& command, std::span<const std::string_view> names) {
  std::string given;
  for (const std::string_view name : names) {
    const CLI::Option* const option = command.get_option_no_throw(std::string(name));
    if (option == nullptr || option->count() == 0) continue;
    const std::string& value = option->results().front();
    given += fmt::format(
        " {} {}", name,
        ShellWord(name == "--hostfile" ? std::filesystem::absolute(value).string() : value));
  }
  return given;
}

void KeepGivenOptions(const CLI::App& command, Flags& flags) {
  constexpr std::array<std::string_view, 4> kOfRuns = {"--slots", "--hang-timeout",
                                                       "--start-timeout", "--trial-timeout"};
  constexpr std::array<std::string_view, 10> kOfHosts = {
      "--hostfile", "--include-hosts", "--exclude-hosts", "--num_nodes",  "--num_gpus",
      "--ssh",      "--master_addr",   "--launcher",      "--slurm-args", "--slurm-slots-per-node"};
  flags.host_options = GivenOptions(command, kOfHosts);
  flags.run_options = GivenOptions(command, kOfRuns) + flags.host_options;
}

// Says why the command line is wrong, and returns the exit code.
int Refuse(const std::string& why) {
  std::fprintf(stderr, "dsat: %s\n", why.c_str());
  return kExitUsage;
}

}  // namespace

std::variant<Flags, int> ParseFlags(int argc, const char* const* argv) {
  // Words that people try besides --help and --version.
  const std::string_view first = argc == 1 ? "help" : argv[1];
  if (first == "help" || (argc == 2 && first == "version")) {
    std::vector<const char*> words(argv, argv + argc);
    words.erase(words.begin() + 1, words.begin() + std::min(argc, 2));
    words.push_back(first == "help" ? "--help" : "--version");
    return ParseFlags(static_cast<int>(words.size()), words.data());
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word = ValidUtf8(argv[i]);
    if (word == argv[i]) continue;
    return Refuse(fmt::format("the argument \"{}\" is not UTF-8, which results are written in",
                              Printable(word)));
  }
  Parser parser;
  TakeCommand(&argc, argv, parser);
  parser.app.name("dsat");
  parser.app.description(kIntro);
  parser.app.require_subcommand(1);
  parser.app.option_defaults()->always_capture_default();
  parser.app.set_version_flag("-V,--version", std::string("dsat ") + kVersion + kCommit);
  AddSearchCommands(parser);
  AddResultCommands(parser);
  AddTrainingCommands(parser);
  AddAskTellCommands(parser);
  AddShellCommands(parser);
  RefuseEmptyValues(parser.app);
  const auto is = [&](std::string_view word) {
    return std::find(argv, argv + argc, word) != argv + argc;
  };
  const size_t columns = TerminalColumns(STDOUT_FILENO);
  ShapeHelp(parser.app,
            std::clamp<size_t>(columns == 0 ? kPageColumns : columns, kLeastColumns, kMostColumns),
            is("--help-all") || first == "man");
  if (first == "complete") {
    PrintCompletions(parser.app, {argv + 2, argv + argc});
    return 0;
  }
  try {
    parser.app.parse(Words(argc, argv));
    KeepGivenOptions(*parser.app.get_subcommands().front(), parser.flags);
  } catch (const CLI::ParseError& error) {
    const std::string unknown = UnknownWord(parser.app, argc, argv);
    if (unknown.empty() && error.get_exit_code() == 0) return parser.app.exit(error);  // --help
    return Refuse(unknown.empty() ? fmt::format("{}; dsat --help shows the commands, dsat COMMAND "
                                                "--help their options",
                                                error.what())
                                  : unknown);
  }
  try {
    const auto check = [](const auto& command) {
      CheckUsage(command);
      CheckOptions(command);
    };
    std::visit(check, parser.flags.command);
  } catch (const Error& error) {
    return Refuse(error.what());
  }
  const char* const db = std::getenv("DSAT_DB");
  if (parser.flags.db.empty()) parser.flags.db = db != nullptr && *db != '\0' ? db : "dsat.db";
  if (parser.flags.db == ":memory:")
    return Refuse("--db or DSAT_DB is :memory:, which would keep nothing; expected a file");
  return parser.flags;
}

}  // namespace dsat::cli
