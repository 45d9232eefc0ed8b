// Tests what a command leaves to Hugging Face's trainer, to accelerate or to a cluster's launcher.
#include "searcher/command/trainer_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "searcher/command/deepspeed_command.h"
#include "tests/base/error_code.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Argv = std::vector<std::string>;

class TrainerCommandTest : public testing::Test {
 protected:
  TrainerCommandTest() {
    spec_.model_dir = folder_.path();
    spec_.config_path = "exp.yaml";
    spec_.ds_config_path = folder_ / "ds.json";
    std::ofstream(folder_ / "hf.py") << "parser = HfArgumentParser(TrainingArguments)\n";
    std::ofstream(folder_ / "plain.py") << "import deepspeed\n";
  }

  std::vector<std::string> Complete(const Argv& entrypoint, const Json& ds_config) {
    spec_.entrypoint = entrypoint;
    spec_.ds_config = ds_config;
    return CompleteCommand("ds.json", &spec_);
  }
  std::string ErrorOf(const Argv& entrypoint, const Json& ds_config) {
    return RefusalOf([&] { Complete(entrypoint, ds_config); });
  }

  TempFolder folder_;
  ExperimentSpec spec_;
};

const Json kAuto = {{"train_batch_size", "auto"},
                    {"train_micro_batch_size_per_gpu", "auto"},
                    {"gradient_accumulation_steps", "auto"},
                    {"gradient_clipping", "auto"},
                    {"bf16", {{"enabled", "auto"}}},
                    {"fp16", {{"enabled", "auto"}}}};

TEST_F(TrainerCommandTest, NumbersThatAScriptReadsFromAFileAreNotGuessed) {
  std::ofstream(folder_ / "trl.py") << "from trl import SFTConfig, TrlParser\n"
                                       "parser = TrlParser(SFTConfig)\n";
  std::ofstream(folder_ / "star.py") << "TrainingArguments(**yaml.safe_load(open('args.yaml')))\n";
  const Json with_numbers = {{"train_micro_batch_size_per_gpu", 4},
                             {"gradient_accumulation_steps", 2}};
  const Argv trl = {"python3", "trl.py", "--config", "args.yaml", "--deepspeed", "ds.json"};
  EXPECT_THAT(ErrorOf(trl, kAuto), HasSubstr("dsat cannot see what the trainer sets"));
  EXPECT_EQ(ErrorOf(trl, with_numbers), "");
  EXPECT_THAT(spec_.entrypoint, Contains("--per_device_train_batch_size"));
  const Argv star = {"python3", "star.py", "--deepspeed", "ds.json"};
  EXPECT_THAT(ErrorOf(star, kAuto), HasSubstr("dsat cannot see what the trainer sets"));
  EXPECT_EQ(ErrorOf(star, with_numbers), "");
  std::ofstream(folder_ / "one.json")
      << R"({"out": "a", "per_device_train_batch_size": 3,"gradient_accumulation_steps":2})";
  EXPECT_EQ(ErrorOf({"python3", "star.py", "one.json"}, kAuto), "");
  EXPECT_EQ(spec_.ds_config["train_micro_batch_size_per_gpu"], 3);
  EXPECT_EQ(spec_.ds_config["gradient_accumulation_steps"], 2);
  const Argv without = {"python3", "trl.py", "--deepspeed", "ds.json"};
  EXPECT_EQ(ErrorOf(without, kAuto), "");  // The defaults, which are added to the entrypoint.
}

TEST_F(TrainerCommandTest, ArgumentsThatContradictTheConfigAreNamed) {
  const Json config = {{"train_micro_batch_size_per_gpu", 4}};
  const Argv command = {"python3", "hf.py", "--deepspeed", "ds.json",
                        "--per_device_train_batch_size"};
  const auto notes_with = [&](const char* size) {
    Argv words = command;
    words.push_back(size);
    return Complete(words, config);
  };
  const std::string note = "ds.json: /train_micro_batch_size_per_gpu is 4, and the command's ";
  EXPECT_THAT(notes_with("2"),
              Contains(StartsWith(note + "--per_device_train_batch_size is 2: trials follow")));
  EXPECT_THAT(notes_with("4"), Not(Contains(StartsWith(note))));
}

TEST_F(TrainerCommandTest, AScriptThatIsNotThereIsNamed) {
  EXPECT_EQ(ErrorOf({"python3", "mine.py", "--deepspeed", "ds.json"}, kAuto),
            (folder_ / "mine.py") + ": no such file, which the command starts");
}

TEST_F(TrainerCommandTest, AutoIsWhatTheArgumentsSay) {
  const Argv entrypoint = {"python3",
                           "hf.py",
                           "--deepspeed",
                           "ds.json",
                           "--per-device-train-batch-size=6",
                           "--gradient_accumulation_steps",
                           "3",
                           "--bf16"};
  EXPECT_THAT(Complete(entrypoint, kAuto),
              Contains(HasSubstr("/train_micro_batch_size_per_gpu is \"auto\": 6")));
  EXPECT_EQ(spec_.ds_config, Json({{"train_micro_batch_size_per_gpu", 6},
                                   {"gradient_accumulation_steps", 3},
                                   {"gradient_clipping", "auto"},  // The trainer's own matter.
                                   {"bf16", {{"enabled", true}}},
                                   {"fp16", {{"enabled", "auto"}}}}));
  EXPECT_EQ(spec_.entrypoint, entrypoint);
}

TEST_F(TrainerCommandTest, SearchedArgumentsAreSetInTheirPlaceOrAtTheEnd) {
  spec_.entrypoint = {"python3", "plain.py", "--num-workers=2", "--fast", "--depth", "3"};
  const auto argv = [&](const Json& arguments) {
    return ArgvForTrial(spec_, {{"dsat", {{"arguments", arguments}}}}, "c.json", std::nullopt);
  };
  EXPECT_EQ(argv({{"--num-workers", 8}, {"--depth", "deep"}}),
            (Argv{"python3", "plain.py", "--num-workers=8", "--fast", "--depth", "deep"}));
  EXPECT_EQ(argv({{"--fast", false}, {"--new", 0.5}}),
            (Argv{"python3", "plain.py", "--num-workers=2", "--depth", "3", "--new", "0.5"}));
  EXPECT_EQ(argv({{"--fast", true}, {"--slow", true}, {"--off", false}}),
            (Argv{"python3", "plain.py", "--num-workers=2", "--fast", "--depth", "3", "--slow"}));
  spec_.entrypoint = {"sh", "-c", "python plain.py --depth 3 | tee log"};
  EXPECT_EQ(argv({{"--depth", "a b"}}),
            (Argv{"sh", "-c", "python plain.py --depth 'a b' | tee log"}));
}

TEST_F(TrainerCommandTest, WithoutArgumentsItIsTheTrainersDefaultAndArgumentsAreAdded) {
  Complete({"sh", "-c", "X=1 python hf.py --deepspeed ds.json | tee log"}, kAuto);
  EXPECT_EQ(spec_.ds_config["train_micro_batch_size_per_gpu"], 8);
  EXPECT_EQ(spec_.ds_config["gradient_accumulation_steps"], 1);
  EXPECT_EQ(
      spec_.entrypoint,
      (Argv{"sh", "-c",
            "X=1 python hf.py --per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
            "--deepspeed ds.json | tee log"}));
  // Numbers of the file are what the arguments must say.
  const Json numbers = {{"train_micro_batch_size_per_gpu", 2}, {"gradient_accumulation_steps", 5}};
  Complete({"python3", "hf.py", "--gradient_accumulation_steps", "5"}, numbers);
  EXPECT_EQ(spec_.ds_config, numbers);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "hf.py", "--per_device_train_batch_size", "2",
                                    "--gradient_accumulation_steps", "5"}));
  // All arguments are in another file.
  Complete({"python3", "hf.py", "args.json"}, numbers);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "hf.py", "args.json"}));
}

TEST_F(TrainerCommandTest, ArgumentsWrittenInTheScriptCount) {
  std::ofstream(folder_ / "code.py")
      << "TrainingArguments(\n  'out', per_device_train_batch_size = 16, deepspeed='ds.json')\n";
  EXPECT_THAT(Complete({"python3", "code.py"}, kAuto),
              Contains(HasSubstr("16, as --per_device_train_batch_size is in the script")));
  EXPECT_EQ(spec_.ds_config["train_micro_batch_size_per_gpu"], 16);
  EXPECT_EQ(spec_.ds_config["gradient_accumulation_steps"], 1);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "code.py"}));
  std::ofstream(folder_ / "code.py") << "TrainingArguments(per_device_train_batch_size=n)\n";
  EXPECT_THAT(ErrorOf({"python3", "code.py"}, kAuto), HasSubstr("dsat cannot see"));
  for (const char* text : {"per_device_train_batch_size=1, per_device_train_batch_size=2",
                           "my_per_device_train_batch_size=1", "per_device_train_batch_size=n1",
                           "per_device_train_batch_size"}) {
    std::ofstream(folder_ / "code.py") << "TrainingArguments(" << text;
    EXPECT_THAT(ErrorOf({"python3", "code.py"}, kAuto), HasSubstr("dsat cannot see")) << text;
  }
}

TEST_F(TrainerCommandTest, ArgumentsOfAnyClassCountAndDefaultsOfKnownOnes) {
  const auto write = [&](const char* text) { std::ofstream(folder_ / "trl.py") << text; };
  const Argv trl = {"python3", "trl.py"};
  const auto size = [&](const char* key) { return spec_.ds_config[key].get<int64_t>(); };
  write(
      "# per_device_train_batch_size is small here.\n"
      "args = trl.SFTConfig(output_dir=f('a)'), max_steps=len(x[0:1]),  # (\n"
      "    per_device_train_batch_size=2, deepspeed='ds.json')\n");
  Complete(trl, kAuto);
  EXPECT_EQ(size("train_micro_batch_size_per_gpu"), 2);
  EXPECT_EQ(size("gradient_accumulation_steps"), 1);
  EXPECT_EQ(spec_.entrypoint, trl);
  EXPECT_TRUE(RunsTrainer(spec_));
  write(
      "from trl.trainer import DPOConfig\n"
      "HfArgumentParser(ScriptArguments)\nDPOConfig(output_dir='out')");
  Complete(trl, kAuto);
  EXPECT_EQ(size("train_micro_batch_size_per_gpu"), 8);
  EXPECT_EQ(spec_.entrypoint, trl);
  write(
      "class Other:\n  def set(self):\n    self.n = 5\nn = 3\n"
      "MyArguments(per_device_train_batch_size=n, gradient_accumulation_steps=4)");
  Complete(trl, kAuto);
  EXPECT_EQ(size("train_micro_batch_size_per_gpu"), 3);
  EXPECT_EQ(size("gradient_accumulation_steps"), 4);
  for (const char* text :
       {"trl.SFTConfig(**settings)", "MyArguments(per_device_train_batch_size=3)",
        "def f(per_device_train_batch_size=3, gradient_accumulation_steps=4): pass",
        "MyArguments()\nper_device_train_batch_size=3\ngradient_accumulation_steps=4",
        "MyArguments([per_device_train_batch_size=3, gradient_accumulation_steps=4])",
        "# SFTConfig(per_device_train_batch_size=3, gradient_accumulation_steps=4)",
        "args = trl.SFTConfig()\nargs.per_device_train_batch_size = 3"}) {
    write(text);
    EXPECT_THAT(ErrorOf(trl, kAuto), HasSubstr("dsat cannot see")) << text;
  }
}

TEST_F(TrainerCommandTest, OnlyArgumentsThatTheScriptParsesAreAdded) {
  std::ofstream(folder_ / "own.py")
      << "from transformers import HfArgumentParser, TrainingArguments\n"
         "class ScriptArguments: pass\n"
         "args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()\n"
         "training = TrainingArguments('out', gradient_accumulation_steps=2)\n";
  const Argv own = {"python3", "own.py", "--deepspeed", "ds.json"};
  Complete(own, kAuto);
  EXPECT_EQ(spec_.entrypoint, own);
  EXPECT_EQ(spec_.ds_config["train_micro_batch_size_per_gpu"], 8);
  EXPECT_EQ(spec_.ds_config["gradient_accumulation_steps"], 2);
  for (const char* text : {"# HfArgumentParser\n", "HfArgumentParser(ScriptArguments)\nGPTQConfig",
                           "# HfArgumentParser(TrainingArguments)\nprint(TrainingArguments)",
                           "HfArgumentParser((Script, MYConfig))\nMYConfig(4)"}) {
    std::ofstream(folder_ / "own.py") << text;
    EXPECT_THAT(ErrorOf(own, kAuto), HasSubstr("dsat cannot see")) << text;
  }
  for (const char* text :
       {"class MyTrainingArguments(TrainingArguments): pass\nHfArgumentParser(MyTrainingArguments)",
        "from trl import ModelConfig, SFTConfig\n"
        "kinds = (ScriptArguments, SFTConfig, ModelConfig)\nTrlParser(kinds)\nLoraConfig()",
        "HfArgumentParser((ScriptArguments, TrainingArguments))\nGPTQConfig(bits=4)\n"
        "# The TrainingArguments (of transformers).\n\"\"\"TrainingArguments('it\"s')\"\"\"\n"
        "print('TrainingArguments(' + \"\\\"SFTConfig()\")",
        "HfArgumentParser((Script, MYConfig))\nGPTQConfig(bits=4)"}) {
    std::ofstream(folder_ / "own.py") << text;
    Complete(own, kAuto);
    EXPECT_THAT(spec_.entrypoint, Contains("--per_device_train_batch_size")) << text;
  }
}

TEST_F(TrainerCommandTest, AMillionBlanksAreRead) {
  const std::string blanks(1'000'000, ' '), lines(1'000'000, '\n');
  std::ofstream(folder_ / "code.py")
      << "TrainingArguments(per_device_train_batch_size" << blanks << "=" << lines << "4)";
  Complete({"python3", "code.py"}, kAuto);
  EXPECT_EQ(spec_.ds_config["train_micro_batch_size_per_gpu"], 4);
  std::ofstream(folder_ / "acc.yaml")
      << lines << blanks << "deepspeed_config_file:" << blanks << "'ds.json'";
  Complete({"accelerate", "launch", "--config_file", "acc.yaml", "plain.py"}, Json::object());
  EXPECT_THAT(spec_.entrypoint, Contains("ds.json"));
}

TEST_F(TrainerCommandTest, ATotalOfFewerRanksIsLeftToDeepSpeed) {
  spec_.slots_per_trial = 4;
  Json sizes = {{"train_batch_size", 16},
                {"train_micro_batch_size_per_gpu", 4},
                {"gradient_accumulation_steps", 2}};
  EXPECT_THAT(Complete({"python3", "plain.py"}, sizes), Contains(HasSubstr("2 of 4 ranks")));
  EXPECT_FALSE(spec_.ds_config.contains("train_batch_size"));
  // The right number for all ranks, and two that are wrong.
  for (const int64_t total : {32, 24, 64}) {
    sizes["train_batch_size"] = total;
    EXPECT_THAT(Complete({"python3", "plain.py"}, sizes), IsEmpty());
    EXPECT_EQ(spec_.ds_config, sizes);
  }
  // DeepSpeed counts ranks that share tensors, too, and dsat does not.
  sizes["tensor_parallel"] = {{"autotp_size", 2}};
  sizes["train_batch_size"] = 32;
  EXPECT_THAT(Complete({"python3", "plain.py"}, sizes), Contains(HasSubstr("4 of 4 ranks")));
  sizes["train_batch_size"] = 16;
  EXPECT_THAT(Complete({"python3", "plain.py"}, sizes), IsEmpty());
}

TEST_F(TrainerCommandTest, AnAutoThatNobodyShowsIsRefused) {
  EXPECT_THAT(ErrorOf({"python3", "plain.py", "--deepspeed_config", "ds.json"}, kAuto),
              AllOf(HasSubstr("ds.json: /train_micro_batch_size_per_gpu is \"auto\""),
                    HasSubstr("does not give --per_device_train_batch_size")));
  EXPECT_THAT(ErrorOf({"sh", "-c", "python hf.py --per_device_train_batch_size $B"}, kAuto),
              HasSubstr("the command gives --per_device_train_batch_size $B"));
  const Json numbers = {{"train_batch_size", 4}};
  EXPECT_THAT(Complete({"python3", "plain.py"}, numbers), IsEmpty());
  EXPECT_EQ(spec_.ds_config, numbers);
  spec_.ds_config_path = "ds.json";  // In the current folder.
  EXPECT_THAT(ErrorOf({"python3", "plain.py"}, kAuto), HasSubstr("micro_batch_size_per_gpu is"));
  spec_.ds_config_path = "stage_3";  // It is dsat's, where trials fill in what is open.
  EXPECT_THAT(Complete({"python3", "plain.py"}, {{"train_micro_batch_size_per_gpu", "auto"}}),
              IsEmpty());
}

TEST_F(TrainerCommandTest, TheFileThatAcceleratesConfigNamesBecomesAnArgument) {
  std::ofstream(folder_ / "acc.yaml")
      << "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero3_init_flag: true\n";
  Complete({"accelerate", "launch", "--config_file", "acc.yaml", "plain.py"}, Json::object());
  EXPECT_EQ(spec_.entrypoint, (Argv{"accelerate", "launch", "--config_file", "acc.yaml",
                                    "--deepspeed_config_file", "ds.json", "plain.py"}));
  std::ofstream(folder_ / "acc.yaml") << "deepspeed_config:\n  zero_stage: 2\n";
  const Argv other = {"accelerate", "launch", "--config_file", "acc.yaml", "plain.py"};
  EXPECT_THAT(Complete(other, Json::object()), IsEmpty());
  EXPECT_EQ(spec_.entrypoint, other);
}

TEST_F(TrainerCommandTest, OffloadedParametersBelowStage3AreLeftOutWithAWarning) {
  const auto config = [](const Json& stage) {
    return Json{{"train_batch_size", 4},
                {"zero_optimization", {{"stage", stage}, {"offload_param", {{"device", "cpu"}}}}}};
  };
  EXPECT_THAT(Complete({"python3", "plain.py"}, config(2)),
              Contains(HasSubstr("offload_param/device is \"cpu\", which DeepSpeed ignores")));
  EXPECT_EQ(spec_.ds_config["zero_optimization"], (Json{{"stage", 2}}));
  EXPECT_THAT(Complete({"python3", "plain.py"}, config(3)), IsEmpty());
  EXPECT_TRUE(spec_.ds_config["zero_optimization"].contains("offload_param"));
}

TEST_F(TrainerCommandTest, ThePathOfTheOwnConfigBecomesAPlaceholder) {
  Complete({"python3", "plain.py", "--config=./ds.json", "ds.json", "--ds_config", "ds.json"},
           {{"train_batch_size", 4}});
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py", "--config={ds_config}", "{ds_config}",
                                    "--ds_config", "ds.json"}));
}

TEST_F(TrainerCommandTest, TheClustersLauncherIsLeftOut) {
  const Json config = {{"train_batch_size", 4}};
  EXPECT_THAT(
      Complete({"python3", "-m", "determined.launch.deepspeed", "python3", "plain.py"}, config),
      Contains(HasSubstr("-m determined.launch.deepspeed in the entrypoint is left out")));
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py"}));
  Complete({"python3", "-m", "determined.launch.deepspeed", "plain.py", "--x"}, config);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py", "--x"}));
  Complete({"sh", "-c", "python3 -m determined.launch.deepspeed --no_ssh -- python3 plain.py $X"},
           config);
  EXPECT_EQ(spec_.entrypoint.back(), "python3 plain.py $X");
  Complete({"python3", "-u", "-m", "determined.launch.deepspeed", "python3", "plain.py"}, config);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py"}));
  Complete({"python3", "-X", "dev", "-m", "determined.launch.deepspeed", "python3", "plain.py"},
           config);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py"}));
  Complete({"python3", "-u", "-m", "determined.launch.deepspeed", "plain.py"}, config);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "-u", "plain.py"}));
}

TEST_F(TrainerCommandTest, ATrialClassIsDrivenByTheModuleOfItsLauncher) {
  const Json config = {{"train_batch_size", 4}};
  const Argv launch = {"python3", "-m", "determined.launch.deepspeed"};
  for (const Argv& trial : {Argv{"--trial", "m:T"}, {"--no_ssh", "--trial=m:T"}}) {
    Argv argv = launch;
    argv.insert(argv.end(), trial.begin(), trial.end());
    EXPECT_THAT(Complete(argv, config), IsEmpty());
    EXPECT_EQ(spec_.entrypoint, argv);
  }
  for (const char* name : {"model_def:MyTrial", "_a.b1:_C2"}) {
    Complete({name}, config);
    Argv argv = launch;
    argv.insert(argv.end(), {"--trial", name});
    EXPECT_EQ(spec_.entrypoint, argv);
  }
}

TEST_F(TrainerCommandTest, HyperparametersAreFilledIn) {
  const Json config = {{"train_batch_size", 4}};
  spec_.hyperparameters = {{"lr", 0.5}, {"name", "a b"}, {"sizes", {1, 2}}, {"ds_config", 1}};
  Complete({"python3", "plain.py", "--lr={lr}", "{name}:{lr}", "{sizes}", "{other}", "${lr}",
            "{ds_config}"},
           config);
  EXPECT_EQ(spec_.entrypoint, (Argv{"python3", "plain.py", "--lr=0.5", "a b:0.5", "[1,2]",
                                    "{other}", "${lr}", "{ds_config}"}));
  Complete({"sh", "-c", "python3 plain.py {name} $X | cat"}, config);
  EXPECT_EQ(spec_.entrypoint.back(), "python3 plain.py 'a b' $X | cat");
  EXPECT_THAT(ErrorOf({"sh", "-c", "python3 plain.py $X{lr}"}, config),
              HasSubstr("exp.yaml: /entrypoint has $X{lr}, in which a shell's variable"));
}

}  // namespace
}  // namespace dsat
