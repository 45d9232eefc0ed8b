// The commands' options as CLI11 reads them: what the files that define them share.
#ifndef DSAT_CLI_FLAGS_PARSER_H_
#define DSAT_CLI_FLAGS_PARSER_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"

namespace dsat::cli {

// Options that several commands have.
void AddDb(CLI::App& app, Flags& flags);
void AddJson(CLI::App& app, Flags& flags);
void AddExperiment(CLI::App& app, std::string& experiment);
void AddConfig(CLI::App& app, std::string& config, std::string& model_dir);
// How long to wait for a trial, or for the full run.
void AddTimeouts(CLI::App& app, RunFlags& run);

// What a number must be. An error names the option and the value: "--steps: 0; expected a whole
// number of 1 or more". CLI11's own ranges print their limits in hundreds of digits.
CLI::Validator WholeNumberFrom1();
CLI::Validator WholeNumberFrom0();
CLI::Validator NumberAbove0();
CLI::Validator NumberFrom0();

// flags_hosts.cc: which hosts trials run on. DeepSpeed calls the filters --include and --exclude.
enum class FilterNames { kLong, kAndDeepSpeeds };
// Gives --hostfile.
CLI::Option* AddHosts(CLI::App& app, HostFlags& hosts, FilterNames names);
// Throws kInvalidArgument for what only several of these options together can get wrong.
void CheckHostFlags(const HostFlags& hosts);

// Each command's flags live here while CLI11 fills them in; the chosen one becomes Flags::command.
struct Parser {
  CLI::App app;
  Flags flags;
  std::vector<std::unique_ptr<SearchFlags>> searches;
  std::vector<std::unique_ptr<CreateFlags>> creates;
  ResumeFlags resume;
  AskFlags ask;
  TellFlags tell;
  ServeFlags serve;
  ListFlags list;
  ShowFlags show;
  BestFlags best;
  QueryFlags query;
  ExportFlags export_flags;
  TrainFlags train;
  EvalFlags eval;
  GenerateFlags generate;
  EstimateFlags estimate;
  CollateFlags collate;
  AioBenchFlags aio_bench;
  DoctorFlags doctor;
  SuperviseFlags supervise;

  template <typename T>
  CLI::App& Add(const std::string& name, const std::string& summary, T& command,
                bool uses_db = true) {
    CLI::App& sub = *app.add_subcommand(name, summary);
    sub.final_callback([this, &command] { flags.command = command; });
    if (uses_db) AddDb(sub, flags);
    AddJson(sub, flags);
    return sub;
  }
};

// flags_search.cc: searches, and experiments whose trials other programs run.
void AddSearchCommands(Parser& parser);
void AddAskTellCommands(Parser& parser);
// flags_training.cc: training, what is done with its result, and what is known before it.
void AddTrainingCommands(Parser& parser);

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_PARSER_H_
