// Formats a search space.
#include "cli/space_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/files.h"
#include "base/table.h"
#include "engine/config/keys.h"

namespace dsat::cli {
namespace {

using engine::Key;

std::string Count(double number) {
  return number < 1e15 ? fmt::format("{}", std::llround(number))
                       : fmt::format("about {:.2g}", number);
}

std::string SizesText(const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return "none is legal";
  if (sizes.size() <= 10) return fmt::format("{}", fmt::join(sizes, " "));
  return fmt::format("{} sizes from {} to {}", sizes.size(), sizes.front(), sizes.back());
}

std::string ValuesText(const std::vector<Json>& values) {
  std::string text;
  for (const Json& value : values)
    text += (text.empty() ? "" : ", ") + value.dump();
  return text;
}

bool HasKnob(const StageSpace& stage, const std::string& pointer) {
  return std::ranges::find(stage.knobs, pointer, &Knob::pointer) != stage.knobs.end();
}

bool IsRefused(const StageSpace& stage) {
  return stage.approx_max_micro_batch == 0 && stage.forecasts.empty();
}

std::string StageTable(const SearchSpace& space, const Outlook& outlook) {
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < space.stages.size(); ++i) {
    const StageSpace& stage = space.stages[i];
    double combinations = 1;
    for (const Knob& knob : stage.knobs)
      combinations *= static_cast<double>(knob.values.size());
    rows.push_back({std::to_string(stage.stage), Count(combinations), Count(outlook.num_configs[i]),
                    SizesText(outlook.sizes[i])});
  }
  return FormatTable({"stage", "combinations of keys", "configurations", "micro-batch sizes"},
                     rows);
}

// Each key with its values once, and the stages that have them.
std::string KeyTable(const SearchSpace& space, size_t columns) {
  std::vector<std::vector<std::string>> rows;
  for (const StageSpace& stage : space.stages) {
    for (const Knob& knob : stage.knobs) {
      const std::string values = ValuesText(knob.values);
      const auto same = std::ranges::find_if(rows, [&](const std::vector<std::string>& row) {
        return row[0] == knob.pointer && row[2] == values;
      });
      if (same == rows.end()) {
        rows.push_back({knob.pointer, std::to_string(stage.stage), values});
      } else {
        (*same)[1] += fmt::format(" {}", stage.stage);
      }
    }
  }
  if (rows.empty()) return "no key is searched\n";
  return FormatTable({"key", "stages", "values"}, rows, columns);
}

std::string SizeText(const Search& search, const Outlook& outlook) {
  const double all = std::accumulate(outlook.num_configs.begin(), outlook.num_configs.end(), 0.0);
  std::string text = fmt::format("configurations: {}", Count(all));
  if (all > outlook.num_candidates && search.spec().method == "auto")
    text += fmt::format(
        "; auto considers {} of them, those next to the submitted one and others "
        "that are drawn",
        Count(outlook.num_candidates));
  text += "\n";
  const SearchSpace& space = *search.space();
  if (space.samples_per_step > 0)
    text += fmt::format("a step has {} samples on a data-parallel rank\n", space.samples_per_step);
  for (const std::string& condition : search.spec().where)
    text += fmt::format("where: {}\n", Printable(condition));
  return text;
}

std::string BestTable(const Search& search, const Outlook& outlook, size_t columns) {
  if (outlook.best.empty()) return "No configuration of the space is predicted to fit.\n";
  std::vector<std::vector<std::string>> rows;
  for (const ForeseenConfig& config : outlook.best) {
    std::string settings;
    for (const auto& [pointer, value] : config.assignment) {
      if (pointer.ends_with("/stage") || pointer == "/train_micro_batch_size_per_gpu") continue;
      settings += fmt::format("{}{}={}", settings.empty() ? "" : " ",
                              pointer.substr(pointer.rfind('/') + 1), value.dump());
    }
    const auto text = [&](const char* pointer) {
      const Json* value = FindAtPointer(config.ds_config, pointer);
      return value == nullptr ? "" : value->dump();
    };
    const double samples = FindAtPointer(config.ds_config, "/train_batch_size")->get<double>();
    const bool is_timed = config.step_ms > 0;
    rows.push_back({text("/zero_optimization/stage"), text("/train_micro_batch_size_per_gpu"),
                    text("/gradient_accumulation_steps"),
                    HumanBytes(config.predicted.device.peak_bytes),
                    is_timed ? fmt::format("{:.4g} ms", config.step_ms) : "",
                    is_timed ? fmt::format("{:.4g}", 1e3 * samples / config.step_ms)
                             : fmt::format("{:.3f} of the first", 1 / config.factor),
                    settings});
  }
  const bool exact = outlook.best[0].predicted.exact;
  return fmt::format("predicted to be the best; nothing of this is measured{}\n",
                     exact ? "" : ", and memory is by formulas") +
         FormatTable(
             {"stage", "micro-batch", "accumulation", "memory", "step", "samples/s", "settings"},
             rows, columns) +
         (search.spec().method == "auto"
              ? ""
              : fmt::format("by the models of auto; {} does not use them\n", search.spec().method));
}

}  // namespace

std::vector<LeftOut> LeftOutOf(const Search& search) {
  const SearchSpace& space = *search.space();
  std::vector<LeftOut> left_out;
  for (const StageSpace& stage : space.stages) {
    if (IsRefused(stage))
      left_out.push_back({fmt::format("stage {}", stage.stage), "the configuration is refused"});
  }
  for (const Key& key : engine::Keys()) {
    const bool is_user_key = search.spec().search_space.contains(key.pointer);
    if ((*key.values == '\0' && !is_user_key) ||
        key.pointer == std::string_view("/train_micro_batch_size_per_gpu"))
      continue;
    std::vector<int> stages;
    for (const StageSpace& stage : space.stages) {
      if (!HasKnob(stage, key.pointer)) stages.push_back(stage.stage);
    }
    if (stages.empty()) continue;
    const bool is_alone = key.several_ranks && search.spec().slots_per_trial == 1;
    const std::string where =
        stages.size() == space.stages.size()
            ? ""
            : fmt::format(" at stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
    std::string why = fmt::format("it is searched from stage {} on", key.searched_from);
    if (key.searched_from == engine::kNumZeroStages) why = "only --compat determined searches it";
    if (stages.back() < key.from_stage)
      why = fmt::format("it has no effect below stage {}", key.from_stage);
    if (is_alone) why = "it has no effect on one rank";
    left_out.push_back({key.pointer + where, why});
  }
  return left_out;
}

std::string SpaceText(const Search& search, const Outlook& outlook, size_t columns) {
  const SearchSpace& space = *search.space();
  std::string text = StageTable(space, outlook) + "\n" + KeyTable(space, columns) + "\n" +
                     SizeText(search, outlook);
  for (const LeftOut& left_out : LeftOutOf(search))
    text += fmt::format("left out: {}: {}\n", left_out.what, Printable(left_out.why));
  return text + "\n" + BestTable(search, outlook, columns);
}

Json SpaceJson(const Search& search, const Outlook& outlook) {
  Json json{
      {"method", search.spec().method},
      {"profile", dsat::ToJson(*search.profile())},
      {"space", dsat::ToJson(*search.space())},
      {"where", search.spec().where},
      {"num_configs", std::accumulate(outlook.num_configs.begin(), outlook.num_configs.end(), 0.0)},
      {"num_candidates", outlook.num_candidates},
      {"left_out", Json::array()},
      {"best", Json::array()}};
  for (size_t i = 0; i < outlook.sizes.size(); ++i) {
    json["space"]["stages"][i]["micro_batch_sizes"] = outlook.sizes[i];
    json["space"]["stages"][i]["num_configs"] = outlook.num_configs[i];
  }
  for (const LeftOut& left_out : LeftOutOf(search))
    json["left_out"].push_back({{"what", left_out.what}, {"why", left_out.why}});
  for (const ForeseenConfig& config : outlook.best) {
    json["best"].push_back({{"assignment", dsat::ToJson(config.assignment)},
                            {"ds_config", config.ds_config},
                            {"peak_bytes", config.predicted.device.peak_bytes},
                            {"exact", config.predicted.exact},
                            {"step_ms", config.step_ms > 0 ? Json(config.step_ms) : Json()},
                            {"factor", config.factor}});
  }
  return json;
}

}  // namespace dsat::cli
