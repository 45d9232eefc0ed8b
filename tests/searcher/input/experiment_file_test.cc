// Tests the experiment file.
#include "searcher/input/experiment_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kBuiltin[] = R"(name: small gpt2
entrypoint: builtin
resources:
  slots_per_trial: 2
  device: cpu
  device_memory: 512MiB
searcher:
  name: single
  max_length:
    batches: 30
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: gpt2, n_layer: 2}
  data:
    type: text
    path: ["a.txt", 'b.txt']
)";

class ExperimentFileTest : public testing::Test {
 protected:
  ExperimentFileTest() {
    Write("ds_config.json", "{\"train_batch_size\": 8, // as submitted\n}\n");
  }

  std::string Path(const std::string& name) const { return folder_ / name; }
  void Write(const std::string& name, const std::string& text) const {
    WriteFileAtomic(Path(name), text);
  }

  ExperimentSpec Read(const std::string& yaml, const std::string& model_dir = "") {
    Write("deepspeed.yaml", yaml);
    warnings_.clear();
    return ReadExperimentFile(Path("deepspeed.yaml"), model_dir, &warnings_);
  }

  // The error of a file; its code must be kInvalidArgument unless told otherwise.
  std::string Refusal(const std::string& yaml, ErrorCode code = ErrorCode::kInvalidArgument) {
    return RefusalOf([&] { Read(yaml); }, code);
  }

  // The external form: a command, a config file and these lines.
  static std::string External(const std::string& more, const std::string& hparams = "") {
    return "entrypoint: python3 train.py\n" + more +
           "\nhyperparameters:\n  deepspeed_config: ds_config.json\n" + hparams;
  }

  const TempFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(ExperimentFileTest, EveryFieldArrives) {
  ExperimentSpec spec = Read(kBuiltin);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(spec.name, "small gpt2");
  EXPECT_THAT(spec.entrypoint, ElementsAre("builtin"));
  EXPECT_EQ(spec.config_path, Path("deepspeed.yaml"));
  EXPECT_EQ(spec.model_dir, folder_.path());
  EXPECT_EQ(spec.slots_per_trial, 2);
  EXPECT_EQ(spec.device, "cpu");
  EXPECT_EQ(spec.device_memory_bytes, 512 << 20);
  EXPECT_EQ(spec.max_length_steps, 30);
  EXPECT_EQ(spec.ds_config_path, Path("ds_config.json"));
  EXPECT_EQ(spec.ds_config, Json::parse(R"({"train_batch_size": 8})"));
  EXPECT_EQ(spec.hyperparameters, Json::parse(R"({"model": {"type": "gpt2", "n_layer": 2},
      "data": {"type": "text", "path": ["a.txt", "b.txt"]}})"));
}

TEST_F(ExperimentFileTest, DefaultsOfAShortFile) {
  ExperimentSpec spec = Read(External(""));
  EXPECT_EQ(spec.name, "deepspeed");
  EXPECT_THAT(spec.entrypoint, ElementsAre("python3", "train.py"));
  EXPECT_EQ(spec.slots_per_trial, 1);
  EXPECT_EQ(spec.device, "cpu");
  EXPECT_EQ(spec.device_memory_bytes, 0);
  EXPECT_EQ(spec.max_restarts, 1);
  EXPECT_EQ(spec.max_length_steps, 100);
  EXPECT_EQ(spec.hyperparameters, Json::object());
}

TEST_F(ExperimentFileTest, OverwritesMergeIntoTheConfigFile) {
  Write("ds_config.json", R"({"train_batch_size": 8,
      "optimizer": {"type": "Adam", "params": {"lr": 0.1, "eps": 1e-6}}})");
  ExperimentSpec spec = Read(External("", R"(  overwrite_deepspeed_args:
    train_batch_size: 16
    optimizer:
      params:
        lr: 0.005
  dropout: {type: const, val: 0.1}
  nested:
    depth:
      type: const
      val: 3
)"));
  EXPECT_EQ(spec.ds_config, Json::parse(R"({"train_batch_size": 16,
      "optimizer": {"type": "Adam", "params": {"lr": 0.005, "eps": 1e-6}}})"));
  EXPECT_EQ(spec.hyperparameters, Json::parse(R"({"dropout": 0.1, "nested": {"depth": 3}})"));
}

TEST_F(ExperimentFileTest, AStrategyStandsForAConfigFile) {
  const ExperimentSpec spec = Read(
      "entrypoint: builtin\n"
      "hyperparameters:\n"
      "  deepspeed_config: deepspeed_stage_2_offload\n"
      "  overwrite_deepspeed_args: {train_micro_batch_size_per_gpu: 4}\n"
      "  model: {type: gpt2}\n"
      "  data: {type: synthetic}\n");
  EXPECT_EQ(spec.ds_config["zero_optimization"]["stage"], 2);
  EXPECT_EQ(spec.ds_config["zero_optimization"]["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(spec.ds_config["train_micro_batch_size_per_gpu"], 4);
}

TEST_F(ExperimentFileTest, TheConfigMayStandInline) {
  ExperimentSpec spec = Read(R"(entrypoint: python3 train.py
hyperparameters:
  optimizer:
    type: Adam
    params:
      betas:
        - 0.8
        - 0.999
      eps: 1.0e-08
      lr: 0.001
  train_batch_size: 16
  zero_optimization:
    stage: 0
    reduce_bucket_size: 5e8
    cpu_offload: false
  model_name: gpt2
)");
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(spec.ds_config_path, "");
  EXPECT_EQ(spec.ds_config["train_batch_size"], 16);
  EXPECT_EQ(spec.ds_config["optimizer"]["params"]["betas"], Json::parse("[0.8, 0.999]"));
  EXPECT_EQ(spec.ds_config["zero_optimization"]["reduce_bucket_size"], 5e8);
  EXPECT_EQ(spec.hyperparameters, Json::parse(R"({"model_name": "gpt2"})"));
}

TEST_F(ExperimentFileTest, OwnHyperparametersNamedLikeDeepSpeedsStay) {
  ExperimentSpec spec = Read(External("", "  optimizer: adam\n  seed: 3\n  checkpoint: last\n"));
  EXPECT_EQ(spec.hyperparameters,
            Json::parse(R"({"optimizer": "adam", "seed": 3, "checkpoint": "last"})"));
}

TEST_F(ExperimentFileTest, PathsStartAtTheModelFolder) {
  std::filesystem::create_directory(Path("model"));
  Write("model/other.json", "{\"train_batch_size\": 4}");
  std::string yaml =
      "entrypoint: python3 train.py\nhyperparameters:\n  deepspeed_config: other.json\n";
  ExperimentSpec spec = Read(yaml, Path("model/../model"));
  EXPECT_EQ(spec.ds_config_path, Path("model/other.json"));
  EXPECT_EQ(spec.model_dir, Path("model"));
  EXPECT_THAT(Refusal(yaml, ErrorCode::kNotFound),
              testing::AllOf(HasSubstr("/hyperparameters/deepspeed_config"),
                             HasSubstr(Path("other.json"))));
  EXPECT_THROW(Read(yaml, Path("none")), Error);
  yaml = "entrypoint: python3 train.py\nhyperparameters:\n  deepspeed_config: " +
         Path("ds_config.json") + "\n";
  EXPECT_EQ(Read(yaml, Path("model")).ds_config_path, Path("ds_config.json"));
}

TEST_F(ExperimentFileTest, EntrypointForms) {
  auto entrypoint = [&](const std::string& text) {
    return Read("entrypoint: " + text + "\nhyperparameters:\n  deepspeed_config: ds_config.json\n")
        .entrypoint;
  };
  EXPECT_THAT(entrypoint("python3 train.py --name 'a b'"),
              ElementsAre("python3", "train.py", "--name", "a b"));
  EXPECT_THAT(entrypoint("[python3, train.py, --epochs, 3, --x, \"1 2\"]"),
              ElementsAre("python3", "train.py", "--epochs", "3", "--x", "1 2"));
  EXPECT_THAT(entrypoint("FOO=1 python3 train.py | tee log"),
              ElementsAre("sh", "-c", "FOO=1 python3 train.py | tee log"));
}

TEST_F(ExperimentFileTest, ClusterKeysAreNamedOnceInOneLine) {
  Read(
      External("description: d\nlabels: [a]\nenvironment:\n  image: x\n"
               "bind_mounts: [{host_path: /a, container_path: /b}]\n"
               "resources: {slots_per_trial: 1, resource_pool: p}\n"
               "searcher: {name: single, metric: loss, max_length: {epochs: 2}}"));
  EXPECT_THAT(warnings_,
              ElementsAre(EndsWith("deepspeed.yaml: keys without effect are ignored: /bind_mounts, "
                                   "/description, /labels, /resources/resource_pool, "
                                   "/environment/image")));
}

TEST_F(ExperimentFileTest, AnExperimentFileOfAClusterIsReadUnchanged) {
  const ExperimentSpec spec = Read(R"(name: hf
description: tunes a Hugging Face script
entrypoint:
  - python3
  - -m
  - determined.launch.deepspeed
  - python3
  - train.py
  - --deepspeed
  - ds_config.json
environment:
  image: {gpu: some/image, cpu: other/image}
  environment_variables: [NCCL_DEBUG=INFO]
bind_mounts: [{host_path: /data, container_path: /data}]
checkpoint_storage: {type: shared_fs, host_path: /tmp, save_experiment_best: 0}
resources: {slots_per_trial: 2, shm_size: 2147483648}
searcher: {name: single, max_length: {batches: 40}, metric: eval_loss, smaller_is_better: true}
hyperparameters: {deepspeed_config: ds_config.json, lr: {type: const, val: 0.1}}
max_restarts: 0
)");
  EXPECT_THAT(spec.entrypoint, ElementsAre("python3", "train.py", "--deepspeed", "ds_config.json"));
  EXPECT_EQ(spec.max_length_steps, 40);
  EXPECT_THAT(spec.environment, ElementsAre(Pair("NCCL_DEBUG", "INFO")));
  EXPECT_THAT(
      warnings_,
      ElementsAre(AllOf(HasSubstr("/bind_mounts, /checkpoint_storage, /description"),
                        HasSubstr("/resources/shm_size, /environment/image")),
                  HasSubstr("-m determined.launch.deepspeed in the entrypoint is left out")));
}

TEST_F(ExperimentFileTest, TheEnvironmentIsAListOrAMap) {
  const auto environment = [this](const std::string& variables) {
    return Read(External("environment:\n  environment_variables: " + variables)).environment;
  };
  EXPECT_THAT(environment("[A=1, \"B=x=y z\", C=]"),
              ElementsAre(Pair("A", "1"), Pair("B", "x=y z"), Pair("C", "")));
  EXPECT_THAT(environment("{A: 1, B: x y}"), ElementsAre(Pair("A", "1"), Pair("B", "x y")));
  EXPECT_THAT(environment("[]"), ElementsAre());
  // A cluster's lists for kinds of devices.
  const bool gpu = std::filesystem::exists("/dev/nvidiactl");
  EXPECT_THAT(environment("{cpu: [A=cpu], cuda: [A=gpu]}"),
              ElementsAre(Pair("A", gpu ? "gpu" : "cpu")));
  EXPECT_TRUE(Read(External("")).environment.empty());
}

TEST_F(ExperimentFileTest, ConfigWarningsComeBackToo) {
  Write("ds_config.json", R"({"train_batch_size": 8, "my_notes": "x"})");
  Read(External(""));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("unknown keys: /my_notes")));
}

TEST_F(ExperimentFileTest, LimitsOfDeepSpeedsOwnTunerAreSaidNotToApply) {
  for (const bool is_on : {true, false}) {
    Write("ds_config.json",
          Json{{"train_batch_size", 8},
               {"autotuning", {{"enabled", is_on}, {"max_train_micro_batch_size_per_gpu", 4}}}}
              .dump());
    Read(External(""));
    if (is_on) {
      EXPECT_THAT(warnings_, ElementsAre(HasSubstr("/autotuning is for DeepSpeed's own tuner")));
    } else {
      EXPECT_THAT(warnings_, IsEmpty());
    }
  }
}

TEST_F(ExperimentFileTest, KeysOfTheBuiltinEngineAloneAreRefusedForAScript) {
  Write("ds_config.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "optimizer": {"type": "Adam", "params": {"stochastic_rounding": true}}})");
  EXPECT_THAT(Refusal(External("")),
              HasSubstr("/optimizer/params/stochastic_rounding is true; remove it: "
                        "DeepSpeed does not know it, only the built-in engine does"));
  Read(kBuiltin);
  Write("ds_config.json", R"({"train_batch_size": 8,
      "activation_checkpointing": {"keep_norms_and_activations": true}})");
  EXPECT_THAT(Refusal(External("")), HasSubstr("/keep_norms_and_activations is true; remove it"));
  Write("ds_config.json", R"({"train_batch_size": 8,
      "optimizer": {"type": "Apollo", "params": {"stochastic_rounding": true}}})");
  Read(External(""));
}

TEST_F(ExperimentFileTest, MistakesAreNamedWithLineAndKey) {
  struct Case {
    std::string yaml;
    const char* message;
  };
  const Case cases[] = {
      {External("resource: {}"),
       "deepspeed.yaml:2: /resource is unknown; did you mean "
       "\"resources\"?"},
      {External("environment: {environment_variables: [A]}"),
       ":2: /environment/environment_variables/0 is \"A\"; expected NAME=VALUE"},
      {External("environment: {environment_variables: [1A=2]}"), "expected the name of a variable"},
      {External("environment: {environment_variables: {RANK: 1}}"), "sets RANK, which dsat sets"},
      {External("environment: {environment_variables: A=1}"), "expected a list"},
      {"entrypoint: builtin\nhyperparameters: {deepspeed_config: ds_config.json, modle: {}}",
       "/hyperparameters/modle is unknown; did you mean \"model\"?"},
      {"entrypoint: builtin\nhyperparameters: {train_batch_sise: 8, model: {}, data: {}}",
       "/train_batch_sise is 8: unknown key; did you mean \"train_batch_size\"?"},
      {External("environment: {imag: x}"), "/environment/imag is unknown; did you mean \"image\"?"},
      {External("whatever_else: 1"),
       ":2: /whatever_else is unknown; expected one of entrypoint environment hyper"},
      {External("resources:\n  slots: 1\n  slot_per_trial: 2"), ":4: /resources/slot_per_trial"},
      {External("resources:\n  slots_per_trial: 0"),
       ":3: /resources/slots_per_trial is 0; expected "
       "an integer >= 1"},
      {External("resources:\n  slots_per_trial: 1.5"), "is 1.5"},
      {External("resources:\n  slots_per_trial: '2'"), "is \"2\""},
      {External("resources:\n  device_memory: lots"), ":3: /resources/device_memory is \"lots\""},
      {External("resources:\n  device: cpu"),
       ":3: /resources/device applies to the builtin entrypoint only"},
      {External("resources:\n  device: gpu"),
       ":3: /resources/device is \"gpu\"; expected \"auto\", \"cpu\" or \"cuda\""},
      {External("resources:\n  device_memory: 0"), "is 0; expected an integer >= 1"},
      {External("resources:\n  device_memory: 0MiB"), "is \"0MiB\""},
      {External("resources: 3"), ":2: /resources is 3; expected an object"},
      {External("max_restarts: -1"), ":2: /max_restarts is -1; expected an integer >= 0"},
      {External("searcher: {name: adaptive_asha}"), "/searcher/name is \"adaptive_asha\""},
      {External("searcher: {max_length: {weeks: 1}}"), "one of the units batches"},
      {External("searcher: {max_length: 0}"), "/searcher/max_length is 0"},
      {External("searcher: {max_lenght: 5}"), "\"max_length\""},
      {External("name: [1]"), "/name is [1]; expected a text"},
      {External("name: x\nname: y"), ":3: /name is given twice"},
      {External("name: x\xbd"), ":2: /name has \"x\uFFFD\", which is not UTF-8"},
      {External("\xbd: y"), ":1:  has \"\uFFFD\", which is not UTF-8"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(Refusal(c.yaml), HasSubstr(c.message)) << c.yaml;
}

TEST_F(ExperimentFileTest, WhatATargetNeedsIsNamed) {
  struct Case {
    std::string yaml;
    const char* message;
  };
  const Case cases[] = {
      {"hyperparameters: {deepspeed_config: ds_config.json}\n", "/entrypoint is missing"},
      {"entrypoint: ''\nhyperparameters: {deepspeed_config: ds_config.json}\n", "/entrypoint is"},
      {"entrypoint: 1a:C\n", "/hyperparameters/deepspeed_config is missing"},
      {"entrypoint: a:b.c\n", "/hyperparameters/deepspeed_config is missing"},
      {"entrypoint: '" + std::string(200'000, 'a') + "'\n",
       "/hyperparameters/deepspeed_config is missing"},
      {"entrypoint: python3 'train.py\n", "is never closed"},
      {"entrypoint: [python3, [x]]\n", "/entrypoint is [\"x\"]; expected texts only"},
      {"entrypoint: {a: b}\n", ":1: /entrypoint is"},
      {"entrypoint: python3 train.py\n",
       "/hyperparameters/deepspeed_config is missing; expected a file or DeepSpeed's keys in "
       "/hyperparameters"},
      {"entrypoint: python3 train.py\nhyperparameters: {lr: 1}\n",
       ":2: /hyperparameters/deepspeed_config is missing"},
      {External("", "  train_batch_size: 4\n"),
       ":5: /hyperparameters/train_batch_size contradicts"},
      {External("", "  zero_optimization:\n    stage: 1\n"), "zero_optimization contradicts"},
      {External("", "  lr: {type: const, value: 0.1}\n"), "expected {type: const, val: VALUE}"},
      {External("", "  lr: {type: log, minval: -5, maxval: 1, base: 10}\n"),
       ":5: /hyperparameters/lr is"},
      {External("", "  act: {type: categorical, vals: [a, b]}\n"), "expected a constant"},
      {External("", "  overwrite_deepspeed_args: 3\n"), "overwrite_deepspeed_args is 3"},
      {External("", "  overwrite_deepspeed_args: {zero_optimization: {stage: 7}}\n"),
       "/hyperparameters/overwrite_deepspeed_args/zero_optimization/stage is 7; expected"},
      {External("", "  overwrite_deepspeed_args: {train_batch_sise: 4}\n"),
       "/train_batch_sise is 4: unknown key; did you mean \"train_batch_size\"?"},
      {External("resources: {slots_per_trial: 3}"), "/train_batch_size is 8"},
      {"entrypoint: python3 train.py\nhyperparameters:\n  train_batch_size: 4\n"
       "  overwrite_deepspeed_args: {train_batch_size: 8}\n",
       ":4: /hyperparameters/overwrite_deepspeed_args overwrites nothing"},
      {"entrypoint: python3 train.py\nhyperparameters: 7\n", "/hyperparameters is 7"},
      {"entrypoint: python3 train.py\nhyperparameters: {deepspeed_config: 7}\n",
       "/hyperparameters/deepspeed_config is 7"},
      {"entrypoint: builtin\nhyperparameters: {deepspeed_config: ds_config.json, data: {}}\n",
       "/hyperparameters/model is missing; the builtin entrypoint needs it"},
      {"entrypoint: builtin\nhyperparameters: {deepspeed_config: ds_config.json, model: {}}\n",
       "/hyperparameters/data is missing"},
      {"entrypoint: builtin\nhyperparameters: {deepspeed_config: ds_config.json, model: a, "
       "data: {}}\n",
       "/hyperparameters/model is \"a\"; expected an object"},
      {"entrypoint: [builtin, x]\nhyperparameters: {deepspeed_config: ds_config.json, model: {}, "
       "data: {}}\n",
       "it takes no arguments"},
      {"", "expected one YAML document"},
      {"just text\n", "expected one YAML document"},
      {"- a\n- b\n", "expected one YAML document"},
      {"{\n\t\"zero_optimization\": {\"stage\": 1}\n}\n",
       ":2: /zero_optimization is a key of a ds_config; expected an experiment file, which"},
      {"name: a\n---\nname: b\n", "expected one YAML document"},
      {"name: a\nentrypoint: [x\n", "deepspeed.yaml:3: not YAML:"},
      {"name: a\n\tentrypoint: x\n", "; the line is indented by a tab, expected spaces"},
      {"[a, b]: c\n", "has a key that is not a text"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(Refusal(c.yaml), HasSubstr(c.message)) << c.yaml;
}

TEST_F(ExperimentFileTest, TheExamplesOfTheDocumentationPass) {
  std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/experiment-file.md");
  const std::string kOpen = "```yaml\n";
  Write("ds_config.json", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW"}})");
  int examples = 0;
  for (size_t at = docs.find(kOpen); at != docs.npos; at = docs.find(kOpen, at)) {
    at += kOpen.size();
    EXPECT_EQ(Refusal(docs.substr(at, docs.find("```", at) - at)), "");
    EXPECT_THAT(warnings_, IsEmpty());
    ++examples;
  }
  EXPECT_EQ(examples, 4);
}

TEST_F(ExperimentFileTest, AMistakeInTheConfigNamesThatFile) {
  Write("ds_config.json", "{\"train_batch_size\": 8,\n \"train_batch_size\": 9}");
  EXPECT_THAT(Refusal(External("")), HasSubstr("ds_config.json:2:2: duplicate key"));
}

TEST_F(ExperimentFileTest, MissingFilesAreNamed) {
  EXPECT_THAT(RefusalOf([&] { ReadExperimentFile(Path("none.yaml"), "", &warnings_); },
                        ErrorCode::kNotFound),
              HasSubstr("none.yaml"));
}

TEST_F(ExperimentFileTest, ScalarsFollowTheCoreSchema) {
  ExperimentSpec spec =
      Read(External("", R"(  h: {a: 5e8, b: "5e8", c: yes, d: true, e: ~, f: 1e400,
      g: 007, h: 1.5, i: -3, j: '', k: 12 monkeys, l: 1-2, m: +4, n: Null, o: .inf}
)"));
  EXPECT_EQ(spec.hyperparameters["h"], Json::parse(R"({"a": 5e8, "b": "5e8", "c": "yes",
      "d": true, "e": null, "f": "1e400", "g": 7, "h": 1.5, "i": -3, "j": "", "k": "12 monkeys",
      "l": "1-2", "m": 4, "n": null, "o": ".inf"})"));
}

TEST_F(ExperimentFileTest, AnchorsAndMergeKeysWork) {
  ExperimentSpec spec = Read(External("", R"(  base: &base {a: 1, b: 2}
  one:
    <<: *base
    b: 3
  two:
    <<: [*base, {c: 4}]
)"));
  EXPECT_EQ(spec.hyperparameters["one"], Json::parse(R"({"a": 1, "b": 3})"));
  EXPECT_EQ(spec.hyperparameters["two"], Json::parse(R"({"a": 1, "b": 2, "c": 4})"));
}

TEST_F(ExperimentFileTest, FilesThatNeverEndAreRefused) {
  EXPECT_THAT(Refusal(External("", "  a: &a [*a]\n")), HasSubstr("nested more than 50 levels"));
  EXPECT_THAT(Refusal(External("", "  a: &a\n    b: *a\n")), HasSubstr("nested more than"));
  EXPECT_THAT(Refusal(", a"), HasSubstr("expected one YAML document"));
  EXPECT_THAT(Refusal("---\n, b\n"), HasSubstr("expected one YAML document"));
  EXPECT_THAT(Refusal(std::string(2 << 20, '#')), HasSubstr("more than 1.0 MiB"));
  std::string merges = "  a0: &a0 {k: 1}\n";
  for (int i = 1; i < 40; ++i)
    merges += fmt::format("  a{0}: &a{0} {{<<: [*a{1}, *a{1}]}}\n", i, i - 1);
  EXPECT_THAT(Refusal(External("", merges)), HasSubstr("it has more than 100000 values"));
}

TEST_F(ExperimentFileTest, LongNamesOfNestedValuesTakeNoMemory) {
  std::string yaml = "  a: ";
  for (int i = 0; i < 40; ++i)
    yaml += "{" + std::string(900, static_cast<char>('a' + i % 26)) + ": ";
  yaml += "[" + std::string(9000, ',') + "]" + std::string(40, '}') + "\n";
  EXPECT_THAT(Refusal(External("", yaml)), HasSubstr("it has more than 100000 values"));
}

TEST_F(ExperimentFileTest, AnAliasBombIsRefused) {
  std::string yaml = "  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 9; ++i) {
    std::string items;
    for (int j = 0; j < 10; ++j)
      items += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    yaml += fmt::format("  a{}: &a{} [{}]\n", i, i, items);
  }
  EXPECT_THAT(Refusal(External("", yaml)), HasSubstr("it has more than 100000 values"));
}

TEST_F(ExperimentFileTest, DeepNestingIsRefusedWithoutCrashing) {
  EXPECT_THAT(Refusal(External("", "  a: " + std::string(50000, '['))), HasSubstr("not YAML"));
}

}  // namespace
}  // namespace dsat
