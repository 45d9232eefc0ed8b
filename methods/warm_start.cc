// The JSON form of an earlier search, as an experiment keeps it in its options.
#include "methods/warm_start.h"

namespace dsat {

Json ToJson(const EarlierSearch& earlier) {
  Json trials = Json::array();
  for (const Trial& trial : earlier.trials) {
    Json points = Json::array();
    for (const PointResult& result : trial.points)
      points.push_back({{"micro_batch_size", result.point.micro_batch_size},
                        {"accumulation_steps", result.point.accumulation_steps},
                        {"measurement", ToJson(result.measurement)}});
    trials.push_back({{"id", trial.id},
                      {"kind", ToString(trial.kind)},
                      {"state", ToString(trial.state)},
                      {"reason", trial.reason},
                      {"ds_config", trial.ds_config},
                      {"points", std::move(points)},
                      {"started_s", trial.times.started_s},
                      {"ended_s", trial.times.ended_s}});
  }
  return {{"experiment", earlier.experiment},
          {"same_machine", earlier.same_machine},
          {"space", ToJson(earlier.space)},
          {"trials", std::move(trials)}};
}

EarlierSearch EarlierSearchFromJson(const Json& json) {
  EarlierSearch earlier{.experiment = json.at("experiment").get<ExperimentId>(),
                        .same_machine = json.at("same_machine").get<bool>(),
                        .space = SearchSpaceFromJson(json.at("space")),
                        .trials = {}};
  for (const Json& entry : json.at("trials")) {
    Trial& trial = earlier.trials.emplace_back();
    trial.id = entry.at("id").get<TrialId>();
    trial.kind = Parse<TrialKind>(entry.at("kind").get<std::string>());
    trial.state = Parse<TrialState>(entry.at("state").get<std::string>());
    trial.reason = entry.at("reason").get<std::string>();
    trial.ds_config = entry.at("ds_config");
    trial.times = {.started_s = entry.at("started_s").get<double>(),
                   .ended_s = entry.at("ended_s").get<double>()};
    for (const Json& point : entry.at("points"))
      trial.points.push_back({{point.at("micro_batch_size").get<int64_t>(),
                               point.at("accumulation_steps").get<int64_t>()},
                              MeasurementFromJson(point.at("measurement"), "measurement")});
  }
  return earlier;
}

}  // namespace dsat
