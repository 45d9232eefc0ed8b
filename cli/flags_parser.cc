// The options that several commands have.
#include "cli/flags_parser.h"

#include "cli/flags_checks.h"

namespace dsat::cli {

void AddDb(CLI::App& app, Flags& flags) {
  // CLI11 would let the variable replace the option of a subcommand.
  app.add_option("--db", flags.db, "Database file (default: $DSAT_DB, or else dsat.db)")
      ->type_name("FILE");
}

void AddJson(CLI::App& app, Flags& flags) {
  app.add_flag("--json", flags.json, "Print the result as JSON to standard output");
}

void AddExperiment(CLI::App& app, std::string& experiment) {
  app.add_option("experiment", experiment, "Number or name of the experiment")->required();
}

void AddExperimentOrNewest(CLI::App& app, std::string& experiment) {
  app.add_option("experiment", experiment,
                 "Number or name of the experiment (default: the newest one)");
}

void AddConfig(CLI::App& app, std::string& config, std::string& model_dir) {
  app.add_option("config", config, "Experiment file (docs/experiment-file.md)")
      ->required()
      ->type_name("CONFIG.yaml");
  app.add_option("model_dir", model_dir,
                 "Base folder of relative paths and of the command (default: the file's folder)")
      ->type_name("MODEL_DIR");
}

void AddTimeouts(CLI::App& app, RunFlags& run) {
  app.add_option("--hang-timeout", run.hang_timeout_s,
                 "Kill a run after this many seconds without a step")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  app.add_option("--start-timeout", run.start_timeout_s,
                 "Kill a run that has not reported anything after this many seconds")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
}

}  // namespace dsat::cli
