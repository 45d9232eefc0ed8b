// How a searchable ds_config key is added: one row in engine/config/keys.cc, and its effect in
// plan generation (engine/runtime/plan_for.cc). Everything else follows from the row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/config/ds_config.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "profiler/effective_key.h"
#include "profiler/tuning_space.h"
#include "tests/engine/config/key_docs.h"

namespace dsat {
namespace {

using engine::Key;
using engine::KeyTable;
using engine::KeyType;
using testing::HasSubstr;
using testing::Not;

constexpr char kPointer[] = "/zero_optimization/gather_window_size";

KeyTable WithNewRow() {
  std::vector<Key> rows(engine::Keys().begin(), engine::Keys().end());
  const Key row{kPointer, "0.20.0", KeyType::kInt, "4000", engine::Builtin::kHonors};
  rows.push_back(row.From(1)
                     .In(engine::KeyUnit::kElems)
                     .Exact()
                     .UpToParams()
                     .SeveralRanks()
                     .FromStage(2)
                     .DefaultFromStage(3, "8000")
                     .SearchedFromStage(0, "[1000, 4000, 16000]"));
  return KeyTable(std::move(rows));
}

Json Config(int stage, const Json& zero = Json::object()) {
  Json config = {{"train_micro_batch_size_per_gpu", 4}, {"zero_optimization", {{"stage", stage}}}};
  config["zero_optimization"].update(zero);
  return config;
}

Json WithSize(int stage, const Json& size) {
  return Config(stage, {{"gather_window_size", size}});
}

class NewKeyTest : public testing::Test {
 protected:
  // The message of the refusal, or "".
  std::string Refusal(const Json& config, const KeyTable& keys) {
    try {
      engine::ParseDsConfig(config, "ds.json", 2, nullptr, keys);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string Folded(const Json& config, int64_t world_size = 2) {
    ExperimentSpec spec;
    spec.slots_per_trial = world_size;
    return EffectiveKey(config, spec, 6000, keys_);
  }

  const KeyTable keys_ = WithNewRow();
};

TEST_F(NewKeyTest, IsParsedAndCheckedAgainstItsRange) {
  EXPECT_THAT(Refusal(WithSize(2, 1000), engine::Keys()), HasSubstr("gather_window_size"));
  EXPECT_EQ(Refusal(WithSize(2, 1000), keys_), "");
  EXPECT_EQ(Refusal(WithSize(2, "auto"), keys_), "");
  EXPECT_THAT(Refusal(WithSize(2, 0), keys_),
              HasSubstr(std::string(kPointer) + " is 0; expected an integer >= 1"));
  EXPECT_THAT(Refusal(Config(2, {{"gather_window_sise", 1}}), keys_),
              HasSubstr("did you mean \"gather_window_size\"?"));
}

TEST_F(NewKeyTest, IsReadWithTheDefaultOfItsStage) {
  const auto size = [&](const Json& config) {
    return engine::Settings(config, "ds.json", keys_).Int(kPointer);
  };
  EXPECT_EQ(size(WithSize(2, 7e3)), 7000);
  EXPECT_EQ(size(Config(2)), 4000);
  EXPECT_EQ(size(Config(3)), 8000);
  EXPECT_EQ(engine::Settings(Config(0), "ds.json", keys_).AtStage(3).Int(kPointer), 8000);
}

TEST_F(NewKeyTest, FoldsWhereItHasNoEffect) {
  EXPECT_NE(Folded(WithSize(2, 1000)), Folded(WithSize(2, 2000)));
  EXPECT_EQ(Folded(WithSize(2, 4e3)), Folded(Config(2)));
  EXPECT_EQ(Folded(WithSize(2, 7000)), Folded(WithSize(2, 9000)));  // There are 6000 parameters.
  EXPECT_EQ(Folded(WithSize(3, 6000)), Folded(Config(3)));          // The default is larger.
  EXPECT_EQ(Folded(WithSize(1, 1000)), Folded(Config(1)));
  EXPECT_EQ(Folded(WithSize(2, 1000), 1), Folded(Config(2), 1));
}

TEST_F(NewKeyTest, IsSearchedFromItsStageOn) {
  const auto last_of = [&](int64_t num_params, int64_t world_size, size_t stage) {
    const ModelProfile profile{.num_params = num_params, .trainable_num_params = num_params};
    ExperimentSpec spec;
    spec.entrypoint = {"builtin"};
    spec.ds_config = Config(0);
    spec.slots_per_trial = world_size;
    spec.options.zero_stages = {1, 2};
    const auto predictor = MakeFormulaPredictor(spec, profile);
    return MakeSearchSpace(*predictor, profile, spec, keys_).stages[stage].knobs;
  };
  const std::vector<Knob> knobs = last_of(1'000'000, 2, 1);
  ASSERT_FALSE(knobs.empty());
  EXPECT_EQ(knobs.back().pointer, kPointer);
  EXPECT_EQ(knobs.back().values, (std::vector<Json>{1000, 4000, 16000}));
  EXPECT_EQ(last_of(3000, 2, 1).back().values, (std::vector<Json>{1000, 4000}));
  EXPECT_NE(last_of(1'000'000, 2, 0).back().pointer, kPointer);
  EXPECT_TRUE(last_of(1'000'000, 1, 1).empty());
}

TEST_F(NewKeyTest, IsInTheDocs) {
  std::string docs = KeyDocs(keys_);
  for (size_t end = docs.find("\n  "); end != docs.npos; end = docs.find("\n  ", end))
    docs.erase(end, 2);  // Lines that continue an entry.
  EXPECT_THAT(docs, HasSubstr("- `gather_window_size` (0.20.0): an integer >= 1, in elements; "
                              "default `4000`, from stage 3 on `8000`; exact; "));
  EXPECT_THAT(docs, HasSubstr("; searched over `[1000, 4000, 16000]`; honors.\n"));
  EXPECT_THAT(KeyDocs(engine::Keys()), Not(HasSubstr("gather_window_size")));
}

}  // namespace
}  // namespace dsat
