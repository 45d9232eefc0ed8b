// Tests the classification of logs and exit codes of DeepSpeed scripts.
#include "searcher/scripts/exit_classifier.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct LogCase {
  std::string line;
  TrialState state;
  std::string what;
};

TEST(ExitClassifierTest, KnowsTheLastWordsOfDeepSpeedAndPyTorch) {
  const std::vector<LogCase> cases = {
      {"deepspeed.runtime.config.DeepSpeedConfigError: x", TrialState::kInfeasible, "invalid"},
      {"pydantic_core._pydantic_core.ValidationError: 1", TrialState::kInfeasible, "invalid"},
      {"  Extra inputs are not permitted [type=x]", TrialState::kInfeasible, "invalid"},
      {"AssertionError: Check batch related parameters.", TrialState::kInfeasible, "invalid"},
      {"Micro batch size per gpu: 0 has to be greater than 0", TrialState::kInfeasible, "invalid"},
      {"ZeRORuntimeException: y", TrialState::kInfeasible, "invalid"},
      {"dsat._hook.batches.UnreachableError: dsat: the data loader has no whole micro-batch of 8",
       TrialState::kInfeasible, "invalid"},
      {"NotImplementedError: unsupported mix of model_dtype=", TrialState::kInfeasible, "invalid"},
      {"torch.OutOfMemoryError: z", TrialState::kInfeasible, "out of device memory"},
      {"torch.cuda.OutOfMemoryError: z", TrialState::kInfeasible, "out of device memory"},
      {"[rank3]: torch.OutOfMemoryError: z", TrialState::kInfeasible, "out of device memory"},
      {"[1,0]<stderr>:torch.OutOfMemoryError: z", TrialState::kInfeasible, "out of device memory"},
      {"2026-01-01 00:00:00,123 ERROR torch.OutOfMemoryError: z", TrialState::kInfeasible,
       "out of device memory"},
      {"(Worker pid=3, ip=10.0.0.2) torch.cuda.OutOfMemoryError: z", TrialState::kInfeasible,
       "out of device memory"},
      {"ERROR:root:OutOfMemoryError z", TrialState::kInfeasible, "out of device memory"},
      {"OutOfMemoryError('z')", TrialState::kInfeasible, "out of device memory"},
      {"RuntimeError: CUDA out of memory. Tried", TrialState::kInfeasible, "out of device memory"},
      {"RuntimeError: HIP out of memory.", TrialState::kInfeasible, "out of device memory"},
      {"CUDA out of memory", TrialState::kInfeasible, "out of device memory"},
      {"CUBLAS_STATUS_ALLOC_FAILED when", TrialState::kInfeasible, "out of device memory"},
      {"NCCL WARN Cuda failure 'out of memory'", TrialState::kInfeasible, "out of device memory"},
      {"Cuda failure 2 'out of memory'", TrialState::kInfeasible, "out of device memory"},
      {"RuntimeError: Triton Error [CUDA]: out of memory", TrialState::kInfeasible,
       "out of device memory"},
      {"RuntimeError: CUDA driver error: out of memory", TrialState::kInfeasible,
       "out of device memory"},
      {"cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", TrialState::kInfeasible,
       "out of device memory"},
      {"DefaultCPUAllocator: can't allocate memory", TrialState::kFailed, "out of host memory"},
      {"OSError: [Errno 12] Cannot allocate memory", TrialState::kFailed, "out of host memory"},
      {"MemoryError", TrialState::kFailed, "out of host memory"},
      {"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 GiB", TrialState::kFailed,
       "out of host memory"},
      {"what():  std::bad_alloc", TrialState::kFailed, "out of host memory"},
      {"Current loss scale already at minimum - cannot", TrialState::kFailed, "the loss scale"},
      {"RuntimeError: ... EADDRINUSE ...", TrialState::kFailed, "a port"},
      {"ncclSystemError: System call failed", TrialState::kFailed, "a port"},
      {"OSError: [Errno 28] No space left on device", TrialState::kFailed, "a port"},
  };
  for (const LogCase& log : cases) {
    const auto finding = ClassifyLog("step 1\n" + log.line + "\nTraceback ends\n");
    ASSERT_TRUE(finding) << log.line;
    EXPECT_EQ(ToString(finding->state), ToString(log.state)) << log.line;
    EXPECT_THAT(finding->reason, StartsWith(log.what));
    EXPECT_THAT(finding->reason, HasSubstr(log.line.substr(log.line.find_first_not_of(' '))));
  }
}

TEST(ExitClassifierTest, OrdinaryLogsSayNothing) {
  EXPECT_EQ(ClassifyLog(""), std::nullopt);
  EXPECT_EQ(ClassifyLog("error: no error, 0 errors\nERROR in the weather\n"), std::nullopt);
  EXPECT_EQ(ClassifyLog("hint: if you see CUDA out of memory, lower it\nKeyError: 'labels'\n"),
            std::nullopt);
  EXPECT_EQ(ClassifyLog("note: torch.cuda.OutOfMemoryError is handled by this script\n"
                        "warning: epoch length has to be greater than 0\n"
                        "Reading MemoryErrorLog.txt\nValueError: bad data\n"),
            std::nullopt);
  EXPECT_EQ(ClassifyLog("  File \"t.py\", line 3, in Codes\n    MemoryError: int = 3\n"
                        "ERROR:root:MemoryErrorLog.txt is full\nValueError: bad data\n"),
            std::nullopt);
  EXPECT_EQ(ClassifyLog("MemAllocated=1GB\nout of memory lane\nnccl\nout of memory\n"),
            std::nullopt);
}

TEST(ExitClassifierTest, AnOutOfMemoryIsNotTakenForItsEcho) {
  const auto finding = ClassifyLog("Connection refused\nCUDA out of memory\n");
  EXPECT_EQ(finding->state, TrialState::kInfeasible);
}

TEST(ExitClassifierTest, TheErrorIsQuotedAndNotTheSourceThatATracebackShows) {
  const auto finding = ClassifyLog(
      "  File \"t.py\", line 3, in <module>\n"
      "    raise torch.OutOfMemoryError(\"CUDA out of memory. Tried to allocate 2 GiB\")\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n");
  EXPECT_EQ(finding->reason,
            "out of device memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 "
            "GiB");
}

TEST(ExitClassifierTest, OutOfMemoryInAnyWordsCountsInTheLastErrorOrLine) {
  const ExitReport exit = {.first_failed_rank = 1, .exit_code = 1};
  for (const char* words :
       {"error: out of memory", "out of memory", "RuntimeError: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying"}) {
    const Outcome outcome = ClassifyExit(exit, {"x\n", fmt::format("step 1\n{}\n\n", words)});
    EXPECT_EQ(ToString(outcome.state), "infeasible") << words;
    EXPECT_EQ(outcome.reason, fmt::format("out of memory: {}", words));
    // The line is that of the rank that failed first, and no earlier one.
    EXPECT_EQ(ToString(ClassifyExit(exit, {words, "x\n"}).state), "failed") << words;
    EXPECT_EQ(
        ToString(ClassifyExit(exit, {"x\n", fmt::format("hint: {}\nKeyError: 1\n", words)}).state),
        "failed");
  }
}

TEST(ExitClassifierTest, AHintAboutMemoryIsNoError) {
  const ExitReport exit = {.first_failed_rank = 0, .exit_code = 1};
  for (const char* hint :
       {"hint: if you run out of memory, lower the batch", "Tip: out of memory?"})
    EXPECT_EQ(ToString(ClassifyExit(exit, {hint}).state), "failed") << hint;
}

TEST(ExitClassifierTest, ColorsOfATerminalAreLeftOut) {
  const auto finding = ClassifyLog("step 1\n\x1b[1;31mMemoryError\x1b[0m: z\nbye\n");
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->reason, "out of host memory: MemoryError: z");
}

TEST(ExitClassifierTest, HugeLinesAreSurvived) {
  const std::string line(3'000'000, 'p');
  EXPECT_EQ(ClassifyLog("pydantic" + line + "\n" + line), std::nullopt);
  const auto finding = ClassifyLog(line + "\nMemoryError: " + std::string(5000, '!') + "\n");
  ASSERT_TRUE(finding);
  EXPECT_LT(finding->reason.size(), 1100u);
}

TEST(ExitClassifierTest, TheFirstFailedRankSpeaksFirst) {
  const ExitReport exit = {.first_failed_rank = 1, .exit_code = 1, .log_tail = "last words\n"};
  const std::string oom = "CUDA out of memory\n", port = "Address already in use\n", plain = "x\n";
  EXPECT_THAT(ClassifyExit(exit, {plain, port}).reason, StartsWith("a port"));
  EXPECT_THAT(ClassifyExit(exit, {plain, "MemoryError"}).reason, StartsWith("out of host memory"));
  // The logs of the other ranks count for the configuration, not for the network.
  EXPECT_THAT(ClassifyExit(exit, {oom, port}).reason, StartsWith("out of device memory"));
  EXPECT_THAT(ClassifyExit(exit, {oom, "MemoryError"}).reason, StartsWith("out of device memory"));
  EXPECT_THAT(ClassifyExit(exit, {oom, plain}).reason, StartsWith("out of device memory"));
  EXPECT_EQ(ClassifyExit(exit, {port, plain}).reason, "rank 1 exited with code 1: last words");
}

// As ninja and PyTorch 2.13 print them.
TEST(ExitClassifierTest, AnExtensionThatDoesNotCompileIsShownByItsFirstErrorAndNotTriedAgain) {
  struct Case {
    std::string output;
    std::string error;
    std::string way_out;
  };
  const std::string command = "c++ -MMD -MF shm.o.d -std=c++20 -c /x/shm.cpp -o shm.o \n";
  const std::vector<Case> cases = {
      {"In file included from /v/torch/csrc/Exceptions.h:12,\n"
       "/v/pybind11/detail/common.h:274:10: fatal error: Python.h: No such file or directory\n"
       "  274 | #include <Python.h>\n      |          ^~~~~~~~~~\ncompilation terminated.\n",
       "common.h:274:10: fatal error: Python.h: No such file or directory", "python3-dev"},
      {"/bin/sh: 1: c++: not found\n", "c++: not found", "install a C++ compiler (g++)"},
      {"ccache: error: Could not find compiler \"c++\" in PATH\n", "Could not find", "(g++)"},
      {"/x/fused.cu(31): error: expected a \";\"\n1 error detected\n/x/b.cpp:1:1: error: no\n",
       "fused.cu(31): error: expected a \";\"", ""},
  };
  const ExitReport exit = {.first_failed_rank = 0, .exit_code = 1};
  for (const Case& c : cases) {
    const std::string log = "RuntimeError: Error building extension 'deepspeed_shm_comm': [1/3] " +
                            command + "FAILED: shm.o \n" + command + c.output +
                            "ninja: build stopped: subcommand failed.\n";
    const Outcome outcome = ClassifyExit(exit, {log});
    EXPECT_EQ(ToString(outcome.state), "failed") << c.output;
    EXPECT_TRUE(outcome.recurs);
    EXPECT_THAT(outcome.reason, StartsWith("an extension of PyTorch does not compile: "));
    EXPECT_THAT(outcome.reason, HasSubstr(c.error));
    EXPECT_THAT(outcome.reason, HasSubstr(c.way_out));
  }
  const Outcome no_ninja = ClassifyExit(
      exit, {"RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get "
             "it)\n"});
  EXPECT_TRUE(no_ninja.recurs);
  EXPECT_THAT(no_ninja.reason, HasSubstr("ninja-build"));
  // Warnings of a build that has worked out, and an error of the script that looks like one.
  EXPECT_FALSE(ClassifyExit(exit, {"/x/a.cpp:1:2: error: handled\nRuntimeError: x\n"}).recurs);
}

TEST(ExitClassifierTest, MistakesOfTheScriptAreNotTriedAgain) {
  const ExitReport exit = {.first_failed_rank = 1, .exit_code = 2};
  const auto recurs = [&](const std::string& log) { return ClassifyExit(exit, {"", log}).recurs; };
  for (const char* log : {"ModuleNotFoundError: No module named 'x'\n", "  KeyError: 'lr'\n",
                          "[rank1]: ValueError: bad\n", "dsat._hook.batches.UnreachableError: x\n",
                          "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n",
                          "usage: t.py\n  [-h]\nt.py: error: --lr is missing\n",
                          "FileNotFoundError: [Errno 2] No such file or directory: 'c4'\n",
                          "dsat: cannot run torchrun: No such file or directory\n"})
    EXPECT_TRUE(recurs(log)) << log;
  for (const char* log :
       {"ImportError: /x/shm.so: cannot open shared object file\n", "OSError: a server is away\n",
        "RuntimeError: [c10d] timeout\n", "step 1: error: 0.5\n"})
    EXPECT_FALSE(recurs(log)) << log;
}

TEST(ExitClassifierTest, WrongArgumentsAreShownAlthoughALauncherSpeaksLast) {
  const ExitReport exit = {.first_failed_rank = 0, .exit_code = 2};
  const std::string log =
      "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: ds.json\n"
      "[ERROR] [launch.py:259:sigkill_handler] ['python', 'train.py'] exits with return code = 2\n";
  EXPECT_THAT(ClassifyExit(exit, {log}).reason,
              testing::EndsWith(": train.py: error: unrecognized arguments: ds.json"));
}

TEST(ExitClassifierTest, AnotherRanksLogExplainsADeathWithoutWords) {
  const ExitReport exit = {.first_failed_rank = 0, .exit_code = 128 + SIGABRT};
  const std::string mismatch =
      "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
      "  what():  [pair.cc:534] Received data size doesn't match expected size\n";
  EXPECT_THAT(
      ClassifyExit(exit, {"step 3\n", "RuntimeError: Connection closed by peer\n", mismatch})
          .reason,
      HasSubstr("rank 0 was killed by signal 6 (Aborted); rank 2 says: what():  [pair.cc:534] "
                "Received data size"));
  EXPECT_THAT(ClassifyExit(exit, {"RuntimeError: own words\n", mismatch}).reason,
              Not(HasSubstr("says")));
}

TEST(ExitClassifierTest, TheErrorThatIsNearestToTheCauseIsShownWhereverItStands) {
  const ExitReport aborted = {
      .first_failed_rank = 1, .exit_code = 128 + SIGABRT, .log_tail = "frame #12: clone3\n"};
  const std::string lost = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer\n";
  const Outcome outcome = ClassifyExit(aborted, {"ValueError: label 77\n", lost});
  EXPECT_THAT(outcome.reason, HasSubstr("rank 1 was killed by signal 6 (Aborted)"));
  EXPECT_THAT(outcome.reason, HasSubstr("; rank 0 says: ValueError: label 77"));
  EXPECT_TRUE(outcome.recurs);
  // Beyond the lines of the report.
  EXPECT_THAT(
      ClassifyExit(aborted, {"", "  what():  [enforce fail] x\nframe #12: clone3\n"}).reason,
      HasSubstr("killed by signal 6 (Aborted): what():  [enforce fail] x"));
}

TEST(ExitClassifierTest, AKillByTheKernelIsNoEvidence) {
  const ExitReport exit = {.first_failed_rank = 0, .exit_code = 128 + SIGKILL, .oom_kills = 1};
  EXPECT_THAT(ClassifyExit(exit, {"x\n"}).reason, StartsWith("out of host memory: the kernel"));
  EXPECT_EQ(ClassifyExit(exit, {"x\n"}).state, TrialState::kFailed);
  EXPECT_THAT(ClassifyExit(exit, {"CUDA out of memory\n"}).reason, StartsWith("out of device"));
  ExitReport unexplained = exit;
  unexplained.oom_kills = 0;
  EXPECT_EQ(ClassifyExit(unexplained, {"x\n"}).state, TrialState::kFailed);
}

TEST(ExitClassifierTest, ATrainersContradictionsAreQuotedWithTheirValues) {
  const auto finding = ClassifyLog(
      "ValueError: Please correct the following that mismatch TrainingArguments values:\n"
      "- ds train_micro_batch_size_per_gpu=51 vs hf per_device_train_batch_size=8\n"
      "- ds x=1 vs hf y=2\nThe easiest method is\n");
  ASSERT_TRUE(finding);
  EXPECT_EQ(ToString(finding->state), "failed");
  EXPECT_THAT(finding->reason, HasSubstr("ds train_micro_batch_size_per_gpu=51 vs hf "
                                         "per_device_train_batch_size=8 - ds x=1 vs hf y=2"));
  EXPECT_EQ(finding->reason.find("easiest"), std::string::npos);
}

TEST(ExitClassifierTest, AWaitForALockOfPyTorchIsRecognized) {
  EXPECT_THAT(
      WhyStuck("Using /root/.cache/torch_extensions/py311_cpu as PyTorch extensions root\n"),
      HasSubstr("remove the files named \"lock\""));
  EXPECT_EQ(WhyStuck("Using /root/.cache/torch_extensions as root\nstep 1\n"), "");
}

TEST(ExitClassifierTest, OnlyTheLastLossDecidesWhetherTrainingDiverged) {
  EXPECT_THAT(DivergedLoss("step 1 loss: 2.0\nstep 2 loss: nan\nbye\n"), HasSubstr("step 2 loss"));
  EXPECT_THAT(DivergedLoss("{'loss': 'nan', 'lr': 1}\n"), HasSubstr("nan"));
  EXPECT_EQ(DivergedLoss("loss: nan\nloss=0.5\nval_loss: nan\nloss_scale: nan\n"), "");
}

}  // namespace
}  // namespace dsat
