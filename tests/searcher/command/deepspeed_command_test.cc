// Tests the arguments of a trial's command.
#include "searcher/command/deepspeed_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "searcher/command/rank_launcher.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using Argv = std::vector<std::string>;

struct Rewrite {
  Argv before;
  Argv after;  // With the trial's config "D" and the port 7777.
};
class RewriteTest : public testing::TestWithParam<Rewrite> {};

TEST_P(RewriteTest, GivesTheTrialItsOwnArguments) {
  ExperimentSpec spec;
  spec.entrypoint = GetParam().before;
  spec.model_dir = "/m";
  spec.ds_config_path = "/m/conf/own.json";
  const Json config = {{"train_micro_batch_size_per_gpu", 4}, {"gradient_accumulation_steps", 3}};
  EXPECT_EQ(ArgvForTrial(spec, config, "D", 7777), GetParam().after);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, RewriteTest,
    testing::Values(
        Rewrite{{"python", "t.py", "--ds_config", "a.json"},
                {"python", "t.py", "--ds_config", "D"}},
        Rewrite{{"./t", "--deepspeed=a.json", "x"}, {"./t", "--deepspeed=D", "x"}},
        Rewrite{{"./t", "--deepspeed-config=a", "x"}, {"./t", "--deepspeed-config=D", "x"}},
        // --deepspeed is a switch here, and not the flag of what follows.
        Rewrite{{"./t", "--deepspeed", "--deepspeed_config", "a.json"},
                {"./t", "--deepspeed", "--deepspeed_config", "D"}},
        Rewrite{{"./t", "--deepspeed", "data.txt", "--ds_config", "a.json"},
                {"./t", "--deepspeed", "data.txt", "--ds_config", "D"}},
        Rewrite{{"./t", "--config={ds_config}"}, {"./t", "--config=D"}},
        Rewrite{{"./t", "$DSAT_DS_CONFIG"}, {"./t", "D"}},
        Rewrite{{"./t", "--cfg=$DSAT_DS_CONFIG", "a:${DSAT_DS_CONFIG}/$DSAT_DS_CONFIG"},
                {"./t", "--cfg=D", "a:D/D"}},
        Rewrite{{"./t", "$DSAT_DS_CONFIGS", "{ds_config}"}, {"./t", "$DSAT_DS_CONFIGS", "D"}},
        // The experiment's own file, however it is given.
        Rewrite{{"python", "t.py", "--config", "conf/own.json", "other.json"},
                {"python", "t.py", "--config", "D", "other.json"}},
        Rewrite{{"python", "t.py", "conf/../conf/own.json"}, {"python", "t.py", "D"}},
        Rewrite{{"python", "t.py", "--config-file=./conf/own.json"},
                {"python", "t.py", "--config-file=D"}},
        Rewrite{{"accelerate", "launch", "--deepspeed_config_file", "a.json", "t.py"},
                {"accelerate", "launch", "--main_process_port", "7777", "--deepspeed_config_file",
                 "D", "t.py"}},
        // In a shell, and in the shell of a shell's variables.
        Rewrite{{"sh", "-c", "cd x && LR=1 python t.py --ds_config 'a b.json' \"$LR\" | tee log"},
                {"sh", "-c", "cd x && LR=1 python t.py --ds_config D \"$LR\" | tee log"}},
        Rewrite{{"sh", "-c", "set -e\nexec torchrun t.py \\\n  --ds_config=$CONF  # a.json\n"},
                {"sh", "-c",
                 "set -e\nexec torchrun --master_port 7777 t.py \\\n  --ds_config=D  # a.json\n"}},
        Rewrite{{"bash", "-lc", "python t.py --per-device-train-batch-size=1 conf/own.json"},
                {"bash", "-lc", "python t.py --per-device-train-batch-size=4 D"}},
        Rewrite{{"sh", "-c", "python t.py $DSAT_DS_CONFIG"},
                {"sh", "-c", "python t.py $DSAT_DS_CONFIG"}},
        // Hugging Face's trainer requires the same batch sizes.
        Rewrite{{"./t", "--deepspeed", "a.json", "--per_device_train_batch_size", "1",
                 "--gradient_accumulation_steps=8"},
                {"./t", "--deepspeed", "D", "--per_device_train_batch_size", "4",
                 "--gradient_accumulation_steps=3"}},
        Rewrite{{"deepspeed", "--num_gpus=2", "t.py", "--deepspeed_config", "a.json"},
                {"deepspeed", "--master_port", "7777", "--num_gpus=2", "t.py", "--deepspeed_config",
                 "D"}},
        Rewrite{{"deepspeed", "--master_port", "1234", "t.py", "--deepspeed_config", "a.json"},
                {"deepspeed", "--master_port", "1234", "t.py", "--deepspeed_config", "D"}},
        Rewrite{{"/opt/bin/torchrun", "--nproc-per-node", "2", "t.py", "--ds_config", "a.json"},
                {"/opt/bin/torchrun", "--master_port", "7777", "--nproc-per-node", "2", "t.py",
                 "--ds_config", "D"}},
        Rewrite{
            {"torchrun", "--standalone", "--nproc_per_node=gpu", "t.py", "--ds_config", "a.json"},
            {"torchrun", "--standalone", "--nproc_per_node=gpu", "t.py", "--ds_config", "D"}},
        Rewrite{{"python3", "-m", "torch.distributed.run", "t.py", "--ds_config", "a.json"},
                {"python3", "-m", "torch.distributed.run", "--master_port", "7777", "t.py",
                 "--ds_config", "D"}},
        Rewrite{{"python3", "-u", "-W", "ignore", "-m", "torch.distributed.launch", "t.py"},
                {"python3", "-u", "-W", "ignore", "-m", "torch.distributed.launch", "--master_port",
                 "7777", "t.py"}},
        // Behind a wrapper, whose options may have values with the name of a launcher.
        Rewrite{{"uv", "run", "torchrun", "t.py"},
                {"uv", "run", "torchrun", "--master_port", "7777", "t.py"}},
        Rewrite{{"timeout", "-k", "5", "1h", "nice", "-n", "5", "python3", "-m",
                 "torch.distributed.run", "t.py"},
                {"timeout", "-k", "5", "1h", "nice", "-n", "5", "python3", "-m",
                 "torch.distributed.run", "--master_port", "7777", "t.py"}},
        Rewrite{{"conda", "run", "-n", "deepspeed", "--no-capture-output", "deepspeed", "t.py"},
                {"conda", "run", "-n", "deepspeed", "--no-capture-output", "deepspeed",
                 "--master_port", "7777", "t.py"}},
        Rewrite{{"conda", "run", "-n", "deepspeed", "python3", "t.py", "deepspeed"},
                {"conda", "run", "-n", "deepspeed", "python3", "t.py", "deepspeed"}},
        Rewrite{{"uv", "run", "--with", "deepspeed", "t.py", "deepspeed"},
                {"uv", "run", "--with", "deepspeed", "t.py", "deepspeed"}},
        Rewrite{{"nice", "-10", "timeout", "--foreground", "5", "torchrun", "t.py"},
                {"nice", "-10", "timeout", "--foreground", "5", "torchrun", "--master_port", "7777",
                 "t.py"}},
        Rewrite{
            {"uv", "run", "--frozen", "-p", "3.12", "torchrun", "t.py"},
            {"uv", "run", "--frozen", "-p", "3.12", "torchrun", "--master_port", "7777", "t.py"}},
        Rewrite{{"poetry", "run", "-q", "torchrun", "t.py"},
                {"poetry", "run", "-q", "torchrun", "--master_port", "7777", "t.py"}},
        // Packages that a wrapper installs, and arguments of the program behind it, are no
        // launchers.
        Rewrite{{"sh", "-c", "conda install deepspeed && uv pip install torchrun && python3 t.py"},
                {"sh", "-c", "conda install deepspeed && uv pip install torchrun && python3 t.py"}},
        Rewrite{{"sh", "-c", "uv add accelerate && poetry run deepspeed t.py"},
                {"sh", "-c", "uv add accelerate && poetry run deepspeed --master_port 7777 t.py"}},
        Rewrite{{"uv", "run", "my-train", "deepspeed"}, {"uv", "run", "my-train", "deepspeed"}},
        Rewrite{{"accelerate", "launch", "--num_processes", "2", "t.py", "--ds_config", "a.json"},
                {"accelerate", "launch", "--main_process_port", "7777", "--num_processes", "2",
                 "t.py", "--ds_config", "D"}}));

TEST(OthersMayReadConfigTest, PythonAloneIsSeenToReadIt) {
  const auto others = [](const std::string& script) {
    ExperimentSpec spec;
    spec.entrypoint = {"sh", "-c", script};
    return OthersMayReadConfig(spec);
  };
  for (const char* script :
       {"cp {ds_config} conf/a.json && python3 t.py", "CONF=$DSAT_DS_CONFIG; python3 t.py $CONF",
        "python3 t.py --micro-batch $(jq .train_micro_batch_size_per_gpu ${DSAT_DS_CONFIG})",
        "sed s/x/y/ < \"$DSAT_DS_CONFIG\" > a.json && torchrun t.py", "bash run.sh {ds_config}"})
    EXPECT_TRUE(others(script)) << script;
  for (const char* script :
       {"cd x && python3 t.py $DSAT_DS_CONFIG | tee log", "LR=1 ./t.py --config={ds_config}",
        "uv run torchrun t.py --ds_config a.json", "echo a.json && accelerate launch -m t"})
    EXPECT_FALSE(others(script)) << script;
}

// The refusal by CheckDeepSpeedCommand of a trial of two ranks; "" if there is none.
std::string Refusal(const Argv& entrypoint) {
  ExperimentSpec spec;
  spec.entrypoint = entrypoint;
  spec.slots_per_trial = 2;
  spec.environment = {{"OF_EXPERIMENT", "--num_gpus 2"}};
  return RefusalOf([&] { CheckDeepSpeedCommand(spec, /*has_hook=*/true); });
}

TEST(CheckVariablesTest, AValueOfAFlagAndTheScriptMayBeInVariables) {
  EXPECT_EQ(Refusal({"sh", "-c", "deepspeed --num_gpus $N t.py --ds_config a $MORE"}), "");
  EXPECT_EQ(Refusal({"sh", "-c", "S=train; torchrun $S $MORE --ds_config a"}), "");
  EXPECT_EQ(Refusal({"sh", "-c", "deepspeed '$OPTS' t.py --ds_config a"}), "");
  EXPECT_EQ(Refusal({"sh", "-c", "PYTHON=python3; $PYTHON t.py --ds_config a"}), "");
}

// Its time is linear: looking through all assignments from each of them would exceed the time
// limit.
TEST(FindRankLauncherTest, ManyAssignmentsMayStandBeforeALauncher) {
  std::string script;
  for (int i = 0; i < 200'000; ++i)
    script += "a=;";
  const auto launcher =
      FindRankLauncher(CommandWords({"sh", "-c", script + "exec b= torchrun t.py"}));
  ASSERT_TRUE(launcher);
  EXPECT_EQ(launcher->name, "torchrun");
  EXPECT_EQ(Refusal({"sh", "-c", script + "$RUN t.py --ds_config a"}), "");
}

TEST(CheckVariablesTest, ManyVariablesMayFollowALauncher) {
  std::string script, words;
  for (int i = 0; i < 200'000; ++i) {
    script += "A=1;";
    words += " -x $B";
  }
  const std::string name(1'000'000, 'N');
  EXPECT_EQ(Refusal({"sh", "-c", script + "torchrun" + words + " -x $" + name + " t.py"}), "");
}

TEST(FindRankLauncherTest, MoreRanksThanANumberHoldsAreRefused) {
  EXPECT_THAT(Refusal({"deepspeed", "--num_gpus", "4611686018427387904", "--num_nodes", "4", "t.py",
                       "--ds_config", "a"}),
              HasSubstr("deepspeed would start 9223372036854775807 ranks, expected 2"));
}

TEST(FindRankLauncherTest, ItsArgumentsEndBeforeTheModuleOrTheProgram) {
  for (const Argv& program : {Argv{"--module", "pkg.train"}, Argv{"--no_python", "./train"},
                              Argv{"pkg/train"}, Argv{"t.py"}}) {
    Argv argv = {"deepspeed", "--num_gpus=2"};
    argv.insert(argv.end(), program.begin(), program.end());
    argv.insert(argv.end(), {"-i", "corpus:en", "--num_gpus", "7", "--ds_config", "a"});
    EXPECT_EQ(Refusal(argv), "") << program.front();
  }
  EXPECT_EQ(Refusal({"accelerate", "launch", "--multi-gpu", "pkg/main", "--num_processes", "4",
                     "--ds_config", "a"}),
            "");
  EXPECT_THAT(Refusal({"accelerate", "launch", "--multi_gpu", "--num_processes", "4", "pkg/main",
                       "--ds_config", "a"}),
              HasSubstr("accelerate would start 4 ranks"));
  EXPECT_THAT(Refusal({"accelerate", "launch", "--config_file", "a", "--num_processes", "3", "-m",
                       "pkg.train", "--num_processes", "2"}),
              HasSubstr("accelerate would start 3 ranks"));
}

TEST(RankProgramTest, LaunchersAndWrappersSayWhatRanksRun) {
  struct Case {
    Argv command;
    size_t starter, begin;
    bool is_module = false;
  };
  for (const Case& each :
       {Case{{"A=b", "torchrun", "--nproc_per_node", "3", "--nnodes=2", "t.py", "--lr"}, 1, 5},
        Case{{"deepspeed", "--num_gpus", "4", "t.py", "--x"}, 0, 3},
        Case{{"python3", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "a.b"},
             0,
             6,
             true},
        Case{{"uv", "run", "--with", "peft", "python", "-W", "ignore", "-m", "a.b"}, 4, 8, true},
        Case{{"timeout", "$LIMIT", "./t.py", "x"}, 2, 2}, Case{{"python3", "-u"}, 0, 2}}) {
    const auto found = RankProgramAt(CommandWords(each.command), 0);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->starter, each.starter) << each.command[0];
    EXPECT_EQ(found->begin, each.begin) << each.command[0];
    EXPECT_EQ(found->is_module, each.is_module) << each.command[0];
  }
  EXPECT_FALSE(RankProgramAt(CommandWords({"bash", "run.sh"}), 0));
}

TEST(CheckIncludedTest, TheDevicesOfDeepSpeedsLauncherAreTheRanksOfATrial) {
  for (const char* filter : {"localhost:0,1,2", "a:0@b:0,3"}) {
    EXPECT_THAT(Refusal({"deepspeed", "--include", filter, "t.py"}),
                HasSubstr("deepspeed would start 3 ranks, expected 2"));
  }
  EXPECT_EQ(Refusal({"deepspeed", "-i", "a:4@b:1", "t.py"}), "");
  EXPECT_EQ(Refusal({"deepspeed", "--include=a", "t.py"}), "") << "the hostfile says how many";
}

TEST(CheckIncludedTest, DeepSpeedsLauncherReadsNoNamesOfDevices) {
  EXPECT_THAT(Refusal({"deepspeed", "--include=localhost:MIG-1,MIG-2", "t.py"}),
              HasSubstr("--include localhost:MIG-1,MIG-2: the launcher `deepspeed` reads numbers"));
  EXPECT_THAT(Refusal({"deepspeed", "-e", "localhost:GPU-3f", "t.py"}), HasSubstr("-e localhost"));
  EXPECT_EQ(Refusal({"deepspeed", "--include", "localhost:0,1", "t.py", "-e", "GPU-1"}), "");
}

TEST(ConfigForScriptTest, KeysHaveTheNamesThatTheReleaseKnows) {
  ExperimentSpec spec;
  const Json config = {{"train_micro_batch_size_per_gpu", 2},
                       {"aio", {{"intra_op_parallelism", 4}, {"queue_depth", 8}}}};
  const auto aio_of = [&](const Json& machine) {
    spec.machine = machine;
    return ConfigForScript(spec, config, /*has_hook=*/true)["aio"];
  };
  for (const char* release : {"0.16.4", "0.19.8+cu121"})
    EXPECT_EQ(aio_of({{"packages", {{"deepspeed", release}}}}), config["aio"]) << release;
  EXPECT_EQ(aio_of(Json::object()), config["aio"]);
  EXPECT_EQ(aio_of({{"packages", {{"deepspeed", "0.16.3"}}}}),
            (Json{{"thread_count", 4}, {"queue_depth", 8}}));
}

// Without it, the import hook would not run.
TEST(ArgvForTrialTest, APythonPathOfTheCommandBeginsWithThatOfTheHook) {
  const auto argv = [](const Argv& entrypoint) {
    ExperimentSpec spec;
    spec.entrypoint = entrypoint;
    return ArgvForTrial(spec, Json::object(), "D", std::nullopt, "/d/hook:/d");
  };
  EXPECT_EQ(argv({"env", "PYTHONPATH=lib", "python", "t.py", "{ds_config}"}),
            (Argv{"env", "PYTHONPATH=/d/hook:/d:lib", "python", "t.py", "D"}));
  EXPECT_EQ(argv({"sh", "-c", "PYTHONPATH=\"$PWD/my lib\" python t.py {ds_config} | cat"}),
            (Argv{"sh", "-c", "PYTHONPATH=/d/hook:/d:\"$PWD/my lib\" python t.py D | cat"}));
  EXPECT_EQ(argv({"sh", "-c", "export PYTHONPATH=; python t.py"}),
            (Argv{"sh", "-c", "export PYTHONPATH=/d/hook:/d; python t.py"}));
  EXPECT_EQ(argv({"python", "t.py", "--env=PYTHONPATH=a"}),
            (Argv{"python", "t.py", "--env=PYTHONPATH=a"}));
}

}  // namespace
}  // namespace dsat
