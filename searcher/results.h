// The results of a search: the files of an experiment, and its trials as CSV or JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "db/store.h"
#include "proto/trial.h"
#include "searcher/search/experiment.h"

namespace dsat {

// The config of the verdict's pick with the batch sizes of its best point, which states what it
// leaves to defaults that may change (WithStatedDefaults); nullopt before a trial succeeds.
std::optional<Json> BestConfig(const Search& search);

// The config that is predicted to be the fastest, as ConfigToKeep has it, of a search that has
// ended before anything but the profile was measured. nullopt if something was, and if nothing can
// be predicted.
std::optional<Json> PredictedConfig(const Search& search);

// A trial's config as WriteResults writes it to a file: with all that BestConfig states, and with
// what the user's script needs. REQUIRES: the trial has succeeded.
Json ConfigToKeep(const Search& search, TrialId id);

// The command that trains with out_dir/ds_config.json, whose content is `ds_config`, quoted for a
// shell: the user's own with the arguments that must agree with the config, started by torchrun if
// dsat starts the ranks of trials, or `dsat train` where that cannot say the same, and on the hosts
// of trials that ran elsewhere. `by_hook`: the script trains so only with dsat's import hook
// (ByHook), which `dsat train` brings.
std::string ProductionCommand(const ExperimentSpec& spec, const Json& ds_config,
                              const std::string& out_dir, bool by_hook);
// Whether the import hook has changed the script's own batch sizes in a trial (PointResult).
bool ByHook(const Search& search, TrialId id);

// The machine that the trials of an experiment run on, to tell whether a recorded speed can be
// expected again: its name and cores, or the names of the hosts; "" if it is not known.
std::string MachineOf(const ExperimentSpec& spec);

// The versions that an experiment's trials ran with, name -> text: "dsat" and, as far as they are
// known, "deepspeed", "torch" and "transformers".
Json VersionsOf(const ExperimentSpec& spec);

// `ds_config`, the configuration of a trial, with the value that it ran with for each key of
// `knobs`, and for each key whose default differs between releases of DeepSpeed or between ZeRO
// stages (Key::changed, Key::fallback_stage). Keys that are given stay, "auto" included. Left out
// are the keys of sections that the config lacks, keys without effect at its stage and, for a
// script, keys that its DeepSpeed does not know, changed defaults if its version is unknown, and
// gradient_clipping if a trainer runs that has an argument for it.
Json WithStatedDefaults(const ExperimentSpec& spec, const std::vector<Knob>& knobs, Json ds_config);

// Writes out_dir/metrics.json and, once a trial has succeeded or if there is a PredictedConfig,
// out_dir/ds_config.json, command.txt,
// and ds_config.fastest.json and ds_config.safest.json where these alternatives differ from the
// pick; each atomically, with the configs as ConfigToKeep has them. Throws if out_dir is not
// writable. metrics.json has these keys:
//   experiment: id, name, config_path, model_dir, hyperparameters, ds_config (as submitted),
//     method, metric, unit, random_seed, state, reason.
//   machine: MachineOf the experiment.
//   versions: VersionsOf the experiment.
//   best_trial: trial, micro_batch_size, accumulation_steps, metrics (name -> value, spread,
//     samples, unit), rank_peak_bytes of the verdict's pick; null if there is none.
//   ds_config: the content of ds_config.json; null if there is none.
//   submitted_trial: as best_trial of the submitted configuration.
//   soak_trial: the same of the longer run of the pick.
//   factor_over_submitted: value, low and high, or null; that of the best other configuration if
//     verdict.nothing_better is true; without confirmation, low and high are
//     null.
//   verdict: the other fields of Verdict (searcher/search/verdict.h); in it, machine_drift: how
//     much slower the machine has become during the search if that is significant, else null:
//     percent, standard_error, hours, percent_per_hour, standard_error_per_hour.
//   trials: state -> number of trials.
//   model_profile: what the profiling trial has measured; null if there is none.
// Without `waits_for_disk`, a power failure may lose the content of the files.
void WriteResults(const Experiment& experiment, const std::string& out_dir,
                  bool waits_for_disk = true);

// All trials of an experiment, one row or object each, by number: the columns of the view
// trial_metrics, then asked_at and ended_at. `format` is "csv" (RFC 4180: a header line, CRLF) or
// "json" (an array, indented, with a final newline). Throws kNotFound, and kInvalidArgument for
// another format.
std::string ExportTrials(const Store& store, ExperimentId id, const std::string& format);
// The rows as objects. Of columns with equal names, such as those of a join, later ones get
// numbers.
Json RowsAsJson(const QueryResult& result);

}  // namespace dsat
