// A user's SQL can read the whole database and cannot change anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "db/schema.h"
#include "db/store.h"
#include "tests/db/store_fixtures.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QueryTest : public ::testing::Test {
 protected:
  QueryTest() : store_(Store::Open(folder_ / "dsat.db", Store::Mode::kCreate)) {
    store_.CreateExperiment(SampleSpec());
  }

  TempFolder folder_;
  Store store_;
};

TEST_F(QueryTest, ColumnsAreNamedAndValuesTyped) {
  const QueryResult result = store_.Query(
      "SELECT 1 AS a, 2.5 AS b, 'text' AS c, NULL AS d, x'00ff' AS e, a.name "
      "FROM experiments AS a");
  EXPECT_THAT(result.columns, ElementsAre("a", "b", "c", "d", "e", "name"));
  EXPECT_THAT(result.rows, ElementsAre(ElementsAre(1, 2.5, "text", Json(), "00ff", "sample")));
}

TEST_F(QueryTest, TextThatIsNoUtf8IsMadePrintable) {
  EXPECT_EQ(store_.Query("SELECT CAST(x'61ff62' AS TEXT)").rows[0][0], "a\uFFFDb");
}

TEST_F(QueryTest, AQueryThatTakesTooMuchIsEnded) {
  const QueryLimits limits = {.time = std::chrono::milliseconds(50), .num_rows = 10};
  const std::string endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) ";
  EXPECT_THAT(RefusalOf([&] { store_.Query(endless + "SELECT count(*) FROM n", limits); },
                        ErrorCode::kDeadlineExceeded),
              HasSubstr("still running after 0.05 s; ask for less"));
  EXPECT_EQ(CodeOf([&] {
              store_.Query(endless + "SELECT i FROM n", {std::chrono::hours(1), 10});
            }),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(store_.Query("SELECT id FROM experiments", limits).rows.size(), 1u);
}

TEST_F(QueryTest, NoFunctionTellsAnAddressOrMakesAHugeText) {
  EXPECT_THAT(RefusalOf([&] { store_.Query("SELECT fts3_tokenizer('simple')"); }),
              HasSubstr("not authorized to use function: fts3_tokenizer"));
  EXPECT_THAT(
      RefusalOf([&] { store_.Query("SELECT zeroblob(500000000)"); }, ErrorCode::kResourceExhausted),
      HasSubstr("string or blob too big"));
}

TEST_F(QueryTest, AQueryWithoutRowsHasColumns) {
  const QueryResult result = store_.Query("SELECT id FROM experiments WHERE id = 99");
  EXPECT_THAT(result.columns, ElementsAre("id"));
  EXPECT_TRUE(result.rows.empty());
}

TEST_F(QueryTest, JsonFunctionsCtesAndSchemaPragmasWork) {
  EXPECT_EQ(store_.Query("SELECT spec ->> '$.options.metric' FROM experiments").rows[0][0],
            "throughput");
  EXPECT_EQ(
      store_.Query("SELECT count(*) FROM experiments, json_each(spec, '$.entrypoint')").rows[0][0],
      1);
  EXPECT_EQ(store_
                .Query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                       " WHERE i < 5) SELECT sum(i) FROM n")
                .rows[0][0],
            15);
  EXPECT_GT(store_.Query("PRAGMA table_info(trials)").rows.size(), 5U);
  EXPECT_EQ(store_.Query("SELECT * FROM pragma_table_info('trials')").rows,
            store_.Query("PRAGMA table_info(trials)").rows);
  EXPECT_EQ(store_.Query("PRAGMA user_version").rows[0][0], kSchemaVersion);
  EXPECT_NE(store_.Query("PRAGMA application_id").rows[0][0], 0);
  EXPECT_FALSE(store_.Query("EXPLAIN QUERY PLAN SELECT * FROM best_trials").rows.empty());
}

TEST_F(QueryTest, AClosingSemicolonAndCommentsAreNoSecondStatement) {
  EXPECT_EQ(store_.Query("-- how many\nSELECT 7; -- that many\n /* end */ ;").rows[0][0], 7);
}

TEST_F(QueryTest, WrongSqlSaysWhat) {
  EXPECT_THAT(RefusalOf([&] { store_.Query("SELECT nme FROM experiments"); }),
              HasSubstr("no such column: nme"));
  for (const char* sql :
       {"", "  -- nothing", "SELEC 1", "SELECT 1; SELECT 2", "SELECT 1; garbage"}) {
    EXPECT_EQ(CodeOf([&] { store_.Query(sql); }), ErrorCode::kInvalidArgument) << sql;
  }
}

TEST_F(QueryTest, WhatWritesOrReachesBeyondIsRefusedAndDoesNothing) {
  const std::string before = ToJson(store_.GetSpec(1)).dump();
  const std::string outside = folder_ / "other.db";
  for (const std::string& sql : std::vector<std::string>{
           "DELETE FROM experiments", "UPDATE experiments SET name = 'x'",
           "INSERT INTO experiments SELECT * FROM experiments", "DROP TABLE points",
           "CREATE TABLE t (x)", "CREATE TEMP TABLE t (x)", "PRAGMA user_version = 9",
           "PRAGMA journal_mode = DELETE", "ATTACH '" + outside + "' AS o", "VACUUM",
           "VACUUM INTO '" + outside + "'", "BEGIN", "SAVEPOINT s", "REINDEX",
           "WITH x AS (SELECT 1) DELETE FROM events", "ANALYZE",
           "DELETE FROM experiments RETURNING id"}) {
    std::string message;
    EXPECT_EQ(CodeOf([&] { store_.Query(sql); }, &message), ErrorCode::kPermissionDenied) << sql;
    EXPECT_THAT(message, HasSubstr("only reading is allowed"));
  }
  EXPECT_EQ(ToJson(store_.GetSpec(1)).dump(), before);
  EXPECT_THAT(folder_.Names(), ElementsAre("dsat.db", "dsat.db-shm", "dsat.db-wal"));
}

TEST_F(QueryTest, TheStoreWritesAsBeforeAfterARefusal) {
  EXPECT_EQ(CodeOf([&] { store_.Query("DELETE FROM experiments"); }), ErrorCode::kPermissionDenied);
  EXPECT_EQ(store_.CreateExperiment(SampleSpec()), 2);
}

}  // namespace
}  // namespace dsat
