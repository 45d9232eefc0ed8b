// Experiments in databases of older schema versions replay, or say that they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "searcher/search/experiment.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

TEST(OldDatabaseTest, LogsOfVersions2To5ReplayAndContinue) {
  for (const int version : {2, 3, 4, 5}) {
    SCOPED_TRACE(version);
    const TempFolder folder;
    MakeDatabaseOfVersion(folder / "dsat.db", version);
    Store store = Store::Open(folder / "dsat.db", Store::Mode::kReadWrite);
    EXPECT_EQ(Experiment::Open(store, 1).state(), ExperimentState::kCompleted);
    Experiment active = Experiment::Open(store, 2);
    EXPECT_EQ(active.search().trials().size(), 4U);
    active.EndAttempt(3, 0, {TrialState::kInfeasible, "out of memory"}, "");
    active.Tell(3, {TrialState::kInfeasible, "out of memory"});
    EXPECT_TRUE(active.Ask().has_value());
  }
}

// The search has changed since version 1: what it asked for then, it does not ask for now.
TEST(OldDatabaseTest, ALogThatDoesNotReplaySaysWhereAndWhatToDo) {
  const TempFolder folder;
  MakeDatabaseOfVersion(folder / "dsat.db", 1);
  Store store = Store::Open(folder / "dsat.db", Store::Mode::kReadWrite);
  EXPECT_EQ(Experiment::Open(store, 1).state(), ExperimentState::kCompleted);
  std::string message;
  EXPECT_EQ(CodeOf([&] { Experiment::Open(store, 2); }, &message), ErrorCode::kDataLoss);
  EXPECT_THAT(message, HasSubstr("trial 2 does not replay as it was recorded"));
  EXPECT_THAT(message, HasSubstr("start a new experiment"));
  EXPECT_EQ(store.Trials(2).size(), 4U);  // What was measured can still be read.
  const size_t begin = message.find("SELECT"), end = message.rfind('"');
  const QueryResult answer = store.Query(message.substr(begin, end - begin));
  EXPECT_THAT(answer.columns, testing::ElementsAre("ds_config"));
}

}  // namespace
}  // namespace dsat
