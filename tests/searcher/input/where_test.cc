// Tests the section where of an experiment file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "searcher/input/user_space.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WhereTest : public testing::Test {
 protected:
  WhereTest() {
    spec_.entrypoint = {"python3", "train.py"};
    spec_.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                       {"zero_optimization", {{"sub_group_size", 1000}}}};
    spec_.search_space = {{"/zero_optimization/reduce_bucket_size", {100, 2000}},
                          {"/dsat/arguments/--workers", {2, 4}},
                          {"/dsat/environment/ALGO", {"Ring", "Tree"}}};
  }

  std::vector<std::string> Read(const Json& section) {
    const ExperimentDocument document{.path = "a.yaml",
                                      .root = {{"where", section}},
                                      .lines = {{"/where", 7}, {"/where/0", 8}, {"/where/1", 9}}};
    warnings_.clear();
    return ReadWhere(document, section, spec_, &warnings_);
  }

  std::string ErrorOf(const Json& section) {
    return RefusalOf([&] { Read(section); });
  }

  ExperimentSpec spec_;
  std::vector<std::string> warnings_;
};

TEST_F(WhereTest, ConditionsOfKeysWithKeysAndConstantsAreKept) {
  const Json conditions = {
      "/zero_optimization/reduce_bucket_size <= /zero_optimization/allgather_bucket_size",
      "/zero_optimization/reduce_bucket_size >= /zero_optimization/sub_group_size",
      "3 < arguments.--workers", "environment.ALGO != Ring",
      "/zero_optimization/overlap_comm == true"};
  EXPECT_EQ(Json(Read(conditions)), conditions);
}

TEST_F(WhereTest, ASubmittedConfigurationThatDoesNotMeetOneIsNoted) {
  Read({"/zero_optimization/reduce_bucket_size <= 1000", "arguments.--workers == 2"});
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("a.yaml:8: "),
                                HasSubstr("the submitted configuration does not meet"))));
  Read({"/zero_optimization/reduce_bucket_size > 1000"});  // 5e8 by default.
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(WhereTest, ErrorsNameTheLineTheConditionAndTheWayOut) {
  EXPECT_THAT(ErrorOf("x"), HasSubstr("a.yaml:7: /where is \"x\"; expected a list"));
  EXPECT_THAT(ErrorOf({"/a < 4", 5}), HasSubstr("a.yaml:8: /where/0 is \"/a < 4\", which has /a, "
                                                "which is not searched and has no value"));
  EXPECT_THAT(ErrorOf({"arguments.--workers < 4", 5}), HasSubstr("a.yaml:9: /where/1 is 5"));
  for (const char* text : {"arguments.--workers<4", "/a =< 4", "/a < 4 < 5", ""})
    EXPECT_THAT(ErrorOf({text}), HasSubstr("expected KEY OP KEY or KEY OP CONSTANT")) << text;
  EXPECT_THAT(ErrorOf({"3 < 4"}), HasSubstr("which has no key"));
  EXPECT_THAT(ErrorOf({"arguments.--other < 4"}),
              HasSubstr("which has arguments.--other, which is not searched and has no value"));
  EXPECT_THAT(ErrorOf({"/gradient_clipping < 4"}), HasSubstr("has no key that is searched"));
  EXPECT_THAT(ErrorOf({"/zero_optimization/max_live_parameters < 4"}),
              HasSubstr("expected its other name, "));
  EXPECT_THAT(ErrorOf({"/train_micro_batch_size_per_gpu < 4"}),
              HasSubstr("expected a range of it"));
  EXPECT_THAT(ErrorOf({"/zero_optimization/stage < 3"}), HasSubstr("expected --zero-stages"));
}

TEST_F(WhereTest, PairsOfManyValuesAreRefused) {
  Json values;
  for (int i = 0; i < 400; ++i)
    values.push_back(i);
  spec_.search_space["/dsat/arguments/--a"] = spec_.search_space["/dsat/arguments/--b"] = values;
  EXPECT_EQ(ErrorOf({"arguments.--a < 300"}), "");
  EXPECT_THAT(ErrorOf({"arguments.--a <= arguments.--b"}),
              HasSubstr("makes more than 100000 pairs of values"));
}

TEST_F(WhereTest, ValuesThatCannotBeComparedAreRefused) {
  EXPECT_THAT(ErrorOf({"arguments.--workers < many"}), HasSubstr("compares 2 with \"many\""));
  EXPECT_THAT(ErrorOf({"environment.ALGO < Tree"}), HasSubstr("expected two numbers"));
  EXPECT_THAT(ErrorOf({"/zero_optimization/overlap_comm == 1"}), HasSubstr("compares true with 1"));
  EXPECT_THAT(ErrorOf({"arguments.--workers > 4"}), HasSubstr("which no values of its keys meet"));
}

}  // namespace
}  // namespace dsat
