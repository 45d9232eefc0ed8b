// Shared by the files that define the commands' options for CLI11.
#ifndef DSAT_CLI_FLAGS_PARSER_H_
#define DSAT_CLI_FLAGS_PARSER_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"

namespace dsat::cli {

// Options of several commands.
void AddDb(CLI::App& app, Flags& flags);
void AddJson(CLI::App& app, Flags& flags);
void AddExperiment(CLI::App& app, std::string& experiment);
void AddExperimentOrNewest(CLI::App& app, std::string& experiment);
void AddConfig(CLI::App& app, std::string& config, std::string& model_dir);
// The time limits of a trial or of the full run.
void AddTimeouts(CLI::App& app, RunFlags& run);

// Holds each command's flags while CLI11 fills them in; those of the chosen command become
// Flags::command.
struct Parser {
  CLI::App app;
  Flags flags;
  std::vector<std::string> command;  // The words behind "--", for those that take a command.
  std::vector<std::unique_ptr<SearchFlags>> searches;
  std::vector<std::unique_ptr<CreateFlags>> creates;
  InitFlags init;
  SpaceFlags space;
  ResumeFlags resume;
  CheckFlags check;
  AskFlags ask;
  TellFlags tell;
  ServeFlags serve;
  ListFlags list;
  ShowFlags show;
  BestFlags best;
  ReportFlags report;
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

}  // namespace dsat::cli

#endif  // DSAT_CLI_FLAGS_PARSER_H_
