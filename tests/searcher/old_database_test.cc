// A log of a dsat that chose trials differently is refused, and says what can still be done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "searcher/experiment.h"
#include "tests/db/store_fixtures.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

TEST(OldDatabaseTest, ALogThatDoesNotReplaySaysWhereAndWhatToDo) {
  Store store = Store::InMemory();
  const ExperimentId id = store.CreateExperiment(SampleSpec());
  // A search begins with a profiling trial.
  store.Append(id, 0, std::vector<Event>{AskedEvent(SampleTrial(0))});
  std::string message;
  EXPECT_EQ(CodeOf([&] { Experiment::Open(store, id); }, &message), ErrorCode::kDataLoss);
  EXPECT_THAT(message, HasSubstr("trial 0 does not replay as it was recorded"));
  EXPECT_THAT(message, HasSubstr("start a new experiment"));
  EXPECT_EQ(store.Trials(id).size(), 1U);  // The trials can still be read.
  const size_t begin = message.find("SELECT"), end = message.rfind('"');
  const QueryResult answer = store.Query(message.substr(begin, end - begin));
  EXPECT_THAT(answer.columns, testing::ElementsAre("ds_config"));
}

}  // namespace
}  // namespace dsat
