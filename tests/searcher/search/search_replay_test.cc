// Recovery is replay: a search that is rebuilt from any prefix of its events continues unchanged.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "methods/methods.h"
#include "tests/sanitizers.h"
#include "tests/searcher/search/simulated_device.h"

namespace dsat {
namespace {

// Applies events [begin, end), and compares every trial asked for with the one recorded. With
// `live`, which has run them, it is a replay, which decides nothing anew. Without, the search
// decides each trial, and it is also asked where the log has a tell and no trial is available.
void Apply(Search& search, const std::vector<SearchEvent>& events, size_t begin, size_t end,
           const Search* live) {
  for (size_t i = begin; i < end; ++i) {
    const SearchEvent& event = events[i];
    if (event.answered) {
      ASSERT_TRUE(search.Answer(*event.answered)) << "event " << i << " of a replay from " << begin;
      continue;
    }
    if (!event.asked.is_null()) {
      const std::optional<Trial> trial =
          search.Start(live == nullptr ? nullptr : &live->trials().at(event.trial));
      ASSERT_TRUE(trial) << "event " << i << " of a replay from " << begin;
      ASSERT_EQ(trial->id, event.trial);
      ASSERT_EQ(trial->ds_config, event.asked) << "event " << i << " of a replay from " << begin;
      continue;
    }
    if (live == nullptr) {
      ASSERT_FALSE(search.Ask()) << "event " << i << " of a replay from " << begin;
    }
    search.Tell(event.trial, event.ending.outcome, event.ending.points, event.ending.profile);
  }
}

using Param = std::tuple<std::string, int64_t>;
class SearchReplay : public testing::TestWithParam<Param> {};

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const MethodInfo& method : Methods())
    names.push_back(method.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    , SearchReplay, testing::Combine(testing::ValuesIn(MethodNames()), testing::Values(1, 3, 16)),
    [](const auto& info) {
      return std::get<0>(info.param) + "_at_" + std::to_string(std::get<1>(info.param));
    });

TEST_P(SearchReplay, EveryPrefixOfTheEventsLeadsToTheSameTrials) {
  for (const int64_t seed : {1, 2}) {
    // A space with few configurations (one rank: no knobs) makes equals and vain asks common.
    for (const int64_t ranks : {1, 2}) {
      ExperimentSpec spec = SimulatedSpec(std::get<0>(GetParam()));
      spec.options.max_concurrent_trials = std::get<1>(GetParam());
      // Every prefix is replayed, and auto thinks for longer than the others.
      spec.options.max_trials = spec.method == "auto" ? 9 : 18;
      spec.options.random_seed = seed;
      spec.options.space = seed == 2 ? "wide" : "published";
      spec.slots_per_trial = ranks;
      Search live(spec);
      const std::vector<SearchEvent> events = RunToEnd(
          live, [](const Trial& trial) { return OnDevice(trial, true); },
          static_cast<uint64_t>(seed));
      ASSERT_GE(events.size(), 12u);
      // Where nothing new is left, most events are answers.
      const size_t stride = std::max<size_t>(IsSanitized() ? 10 : 1, events.size() / 40);
      for (size_t prefix = 0; prefix <= events.size(); prefix += stride * (1 + prefix % 2)) {
        Search rebuilt(spec);
        ASSERT_NO_FATAL_FAILURE(Apply(rebuilt, events, 0, prefix, &live));
        ASSERT_NO_FATAL_FAILURE(Apply(rebuilt, events, prefix, events.size(), nullptr));
        ASSERT_TRUE(rebuilt.Finished());
        EXPECT_EQ(rebuilt.Best(), live.Best());
        EXPECT_EQ(rebuilt.FailureReason(), live.FailureReason());
        EXPECT_EQ(rebuilt.trials().size(), live.trials().size());
      }
    }
  }
}

}  // namespace
}  // namespace dsat
