// Checks the output of dsat doctor on any machine, with or without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/json.h"
#include "base/version.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(DoctorTest, JsonHasWhatTrainingDependsOn) {
  const Workspace work;
  const Json json = work.DsatJson({"doctor", "--json"});
  EXPECT_GE(json["cpu"]["cores"], 1);
  EXPECT_THAT(json["cpu"]["onednn"].get<std::string>(), ContainsRegex("^[0-9]+\\.[0-9]+"));
  EXPECT_GT(json["memory"]["bytes"], json["memory"]["available_bytes"]);
  EXPECT_GT(json["memory"]["available_bytes"], 0);
  EXPECT_GT(json["memory"]["copy_bytes_per_s"], 1e7);
  // Either there is a GPU, or there is a reason.
  const Json& cuda = json["cuda"];
  EXPECT_EQ(json["device"], cuda["problem"].is_null() ? "cuda" : "cpu");
  if (cuda["problem"].is_null()) {
    EXPECT_GT(cuda["gpus"][0]["memory_bytes"], 0);
    EXPECT_GT(cuda["gpus"][0]["to_device_bytes_per_s"], 1e7);
  } else {
    EXPECT_THAT(cuda["problem"].get<std::string>(), HasSubstr("use device cpu"));
  }
}

TEST(DoctorTest, TextSaysWhatIsMissingAndWhatRunsWillUse) {
  const Workspace work;
  const Json json = Json::parse(work.Dsat({"doctor", "--json"}).out);
  const Finished run = work.Succeed({"doctor"});
  EXPECT_THAT(run.out, HasSubstr(json["cpu"]["model"].get<std::string>()));
  const bool multiplies_bf16 = json["cpu"]["multiplies_bf16"];
  const Json& sets = json["cpu"]["instruction_sets"];
  EXPECT_EQ(multiplies_bf16, std::ranges::count(sets, "avx512_bf16") == 1);
  EXPECT_EQ(run.out.find("no bf16 instructions") == run.out.npos, multiplies_bf16);
  EXPECT_THAT(run.out, ContainsRegex("device +" + json["device"].get<std::string>()));
  const Json& nccl = json.at("nccl");
  EXPECT_THAT(run.out,
              ContainsRegex("NCCL +" + (nccl.is_null() ? "not found" : nccl.get<std::string>())));
  const Json& problem = json["cuda"]["problem"];
  if (!problem.is_null()) {
    EXPECT_THAT(run.out, ContainsRegex("no GPU +[^ ]"));
    EXPECT_THAT(run.out, HasSubstr(problem.get<std::string>()));
  }
}

TEST(DoctorTest, NamesWhatScriptsAndSeveralHostsNeed) {
  const Workspace work;
  const Json before = Json::parse(work.Dsat({"doctor", "--json"}).out);
  if (before["packages"].is_null()) GTEST_SKIP() << "there is no python3";
  EXPECT_GT(before["disk_free_bytes"], 0);
  // PyPI has another project of this name.
  work.Write("site/dsat-0.6.5.dist-info/METADATA",
             "Metadata-Version: 2.1\nName: dsat\nVersion: 0.6.5\n");
  work.Write("bin/srun", "#!/bin/sh\n");
  fs::permissions(work.Path("bin/srun"), fs::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PYTHONPATH", work.Path("site").c_str(), /*overwrite=*/1);
  setenv("PATH", (work.Path("bin") + ":" + path).c_str(), /*overwrite=*/1);
  const std::string text = work.Dsat({"doctor"}).out;
  // A search records the version of this dsat, not that of the other project.
  work.Write("script.json", R"({"entrypoint": "python3 -c 'exit(1)'", "max_restarts": 0,
                                "hyperparameters": {"train_micro_batch_size_per_gpu": 1}})");
  work.Dsat({"random", "script.json", "--profile", "measure"});
  const Json machine =
      work.DsatJson({"query", "--json", "SELECT spec -> '$.machine' AS value FROM experiments"});
  unsetenv("PYTHONPATH");
  setenv("PATH", path.c_str(), /*overwrite=*/1);
  EXPECT_THAT(text, HasSubstr("the package dsat 0.6.5 is another project's"));
  EXPECT_THAT(text, ContainsRegex("Slurm +" + work.Path("bin/srun") + "\n"));
  const Json recorded = Json::parse(machine.at(0).at("value").get<std::string>());
  EXPECT_EQ(recorded["dsat"], kVersion);
  EXPECT_FALSE(recorded["packages"].contains("dsat"));
  const Json torch = before["packages"].value("torch", Json());
  EXPECT_THAT(text, HasSubstr("PyTorch    " + (torch.is_null() ? "not found: scripts need it"
                                                               : torch.get<std::string>())));
}

TEST(DoctorTest, SaysWhatIsMissingToCompileExtensions) {
  const Workspace work;
  const Json whole = Json::parse(work.Dsat({"doctor", "--json"}).out)["extensions"];
  if (whole.is_null()) GTEST_SKIP() << "there is no python3";
  const std::string text = work.Dsat({"doctor"}).out;
  EXPECT_THAT(text, HasSubstr(whole["python"].get<std::string>()));
  const bool compiles =
      std::ranges::none_of(whole, [](const Json& fact) { return fact.is_null(); });
  EXPECT_EQ(text.find("compiles no extensions") == text.npos, compiles);
  setenv("CXX", "no-such-compiler", /*overwrite=*/1);
  const Json without = Json::parse(work.Dsat({"doctor", "--json"}).out)["extensions"];
  const std::string missing = work.Dsat({"doctor"}).out;
  unsetenv("CXX");
  EXPECT_TRUE(without["compiler"].is_null());
  EXPECT_EQ(without["headers"], whole["headers"]);
  EXPECT_THAT(missing, HasSubstr("install "));
  EXPECT_THAT(missing, HasSubstr("a C++ compiler (g++)"));
}

TEST(DoctorTest, AGpuThatIsNotThereIsRefusedInOneLineBeforeAnythingRuns) {
  const Workspace work;
  const Json problem = Json::parse(work.Dsat({"doctor", "--json"}).out)["cuda"]["problem"];
  if (problem.is_null()) GTEST_SKIP() << "this machine has a GPU";
  work.Write("gpu.yaml", R"(entrypoint: builtin
resources: {device: cuda}
hyperparameters:
  train_batch_size: 4
  optimizer: {type: Adam}
  model: {type: mlp, vocab_size: 61}
  data: {type: synthetic, vocab_size: 61}
)");
  for (const char* command : {"asha", "train"}) {
    work.ExpectRefused({command, "gpu.yaml"},
                       "gpu.yaml: /resources/device is \"cuda\": " + problem.get<std::string>());
  }
}

}  // namespace
}  // namespace dsat
