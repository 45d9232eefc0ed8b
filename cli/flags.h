// The parsed command line: the command and its options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial_task.h"
#include "searcher/hosts/hosts.h"

namespace dsat::cli {

// Exit codes of dsat besides 0.
inline constexpr int kExitFailure = 1;        // An error, or an experiment that found nothing.
inline constexpr int kExitUsage = 2;          // The command line is wrong.
inline constexpr int kExitNotChecked = 2;     // dsat check could not compare: 1 means slower.
inline constexpr int kExitInterrupted = 130;  // Ctrl-C; the experiment can be resumed.

// The hosts on which trials run.
struct HostFlags {
  std::string hostfile;  // "" = this machine or Slurm; the filters, ssh and master_addr are then
                         // not given.
  HostFilters filters;
  std::string ssh = kDefaultSsh;
  std::string master_addr;           // "" = the first host's own
  std::string launcher;              // "slurm", or "" = ssh if there is a hostfile
  std::string slurm_args;            // Words for salloc.
  int64_t slurm_slots_per_node = 0;  // 0 = all of a trial
};

// How trials are run.
struct RunFlags {
  std::string out_dir;  // "" = dsat-out/<experiment number>
  int64_t num_slots = 0;
  int64_t hang_timeout_s = 120;
  int64_t start_timeout_s = 300;
  int64_t trial_timeout_s = 3600;
  HostFlags hosts;
};

struct SearchFlags {  // dsat auto|asha|binary|random|grid
  std::string method;
  // The experiment file and its folder, or else the words of a command in the current folder.
  std::string config;
  std::string model_dir;
  std::vector<std::string> command;
  std::vector<std::string> include;
  SearchOptions options;
  std::string train_batch_size;  // As SetTrainBatchSize takes it.
  RunFlags run;
};
struct InitFlags {
  std::vector<std::string> command;
  std::string out;  // The experiment file to write.
};
struct DemoFlags {
  std::string folder;  // Gets the example's files, unless it has them.
};
struct SpaceFlags {
  SearchFlags search;
  std::string profile;           // JSON file; "" = measure it
  std::string device;            // By its data sheet; "" = that of this machine
  std::vector<int> zero_stages;  // Empty: as the method has them by default.
};
struct ResumeFlags {
  std::string experiment;
  LimitsRaised limits;
  RunFlags run;
};
struct CheckFlags {
  std::string ds_config;  // The configuration to check, such as OUT/ds_config.json.
  std::string config;     // "" = the experiment file that metrics.json beside ds_config names
  std::string model_dir;
  std::string against;  // "" = the experiment file's own ds_config
  std::string metric;   // "" = that of metrics.json, or the default
  double tolerance = 0.03;
  int64_t rounds = 3;
  RunFlags run;
};
struct CreateFlags {
  std::string method;
  std::string config;
  std::string model_dir;
  std::string profile;  // JSON file
  SearchOptions options;
  std::string train_batch_size;  // As SetTrainBatchSize takes it.
};
struct AskFlags {
  std::string experiment;
};
struct TellFlags {
  std::string experiment;
  int64_t trial = -1;
  std::string metrics;                    // JSON file, "-" = standard input
  std::optional<std::string> infeasible;  // the reason
  std::optional<std::string> failed;      // the reason
  std::string profile;                    // JSON file, for the profiling trial
};
struct ServeFlags {
  std::string listen;  // "" = a unix socket without a file.
};
struct ListFlags {};
struct ShowFlags {
  std::string experiment;
};
struct BestFlags {
  std::string experiment;
  std::string out_dir;  // "" = print only
};
struct ReportFlags {
  std::string experiment;  // "" = the newest one
  std::string other;       // A later one to compare with it; "" = none.
  bool watch = false;      // Writes the page again and again while the search runs.
  std::string out;         // "" = dsat-report-<number>.html
};
struct QueryFlags {
  std::string sql;
  int64_t max_seconds = 60;
  int64_t max_rows = 1'000'000;
};
struct ExportFlags {
  std::string experiment;
  std::string format;  // "" = csv, or json with --json.
  std::string to;      // "" = standard output
};
struct TrainFlags {
  std::string config;
  std::string model_dir;
  std::string ds_config;  // "" = the experiment file's own
  std::optional<int64_t> steps;
  TrainingOptions training;
  TraceTask trace;
  RunFlags run;
};
struct EstimateFlags {
  std::string config;  // "" = none: --model or a command
  std::string model_dir;
  std::vector<std::string> command;  // Behind "--": a script that trains; empty = none
  // A size or preset of GPT-2, a config.json of Hugging Face, or a model block as JSON.
  std::string model;
  std::string ds_config;              // "" = the experiment file's own, or stage_2
  std::vector<std::string> settings;  // "/pointer=JSON" over it
  std::optional<int64_t> micro_batch;
  int64_t seq_len = 0;  // 0 = the data's, or the model's longest
  std::string device;   // "" = cpu with an experiment file, else a100
  std::optional<int64_t> ranks;
  std::string device_memory;  // "" = the device's
  std::string stages;         // "all", or ""
};
// The flags that eval and generate have in common.
struct CheckpointFlags {
  std::string config;
  std::string model_dir;
  std::string checkpoint_dir;
  std::string tag;  // "" = the newest
};
struct EvalFlags {
  CheckpointFlags checkpoint;
};
struct GenerateFlags {
  CheckpointFlags checkpoint;
  GenerateTask task;
  int64_t seed = 42;
};
struct CollateFlags {
  std::string checkpoint_dir;
  std::string out;
  std::string tag;  // "" = the newest
  std::string dtype = "fp32";
  bool force = false;
};
struct DoctorFlags {};

struct AioBenchFlags {
  std::string folder;
  std::string size = "256MiB";
  int64_t repeats = 3;
  std::vector<std::string> block_sizes = {"256KiB", "1MiB", "8MiB"};
  std::vector<int> queue_depths = {8, 32};
  std::vector<int> parallelisms = {1, 2};
};
struct SuperviseFlags {};  // hidden: the process above the ranks of one trial

using Command =
    std::variant<SearchFlags, InitFlags, DemoFlags, SpaceFlags, ResumeFlags, CheckFlags,
                 CreateFlags, AskFlags, TellFlags, ServeFlags, ListFlags, ShowFlags, BestFlags,
                 ReportFlags, QueryFlags, ExportFlags, TrainFlags, EstimateFlags, EvalFlags,
                 GenerateFlags, CollateFlags, AioBenchFlags, DoctorFlags, SuperviseFlags>;

struct Flags {
  Command command;
  std::string db;     // --db, else $DSAT_DB, else dsat.db
  bool json = false;  // machine-readable results on stdout
  // The options that were given for hosts, and for how trials run there except for --out, quoted
  // for a shell, each with a blank before it.
  std::string host_options, run_options;
};

// The parsed command line, or the exit code if it ends here (--help, --version, a usage error,
// which is then one line on stderr).
std::variant<Flags, int> ParseFlags(int argc, const char* const* argv);

}  // namespace dsat::cli
