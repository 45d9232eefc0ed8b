// The installed package as programs outside the tree use it: examples/own-model and
// examples/distillation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>

#include "base/files.h"
#include "tests/build_folder.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

class PackageTest : public testing::Test {
 protected:
  // Runs commands of the shell in the test's folder; gives their exit code, their output is in
  // Log().
  int Run(const std::string& commands) const {
    const int status = std::system(
        fmt::format("cd {} && unset DSAT_CONFIG DSAT_GROUP_FD RANK WORLD_SIZE && ( {} ) >log 2>&1",
                    folder_.path(), commands)
            .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Log() const { return ReadFile(folder_ / "log"); }

  // The number behind `name` in the log, NaN if there is none.
  double Number(const std::string& name) const {
    std::smatch match;
    const std::string log = Log();
    return std::regex_search(log, match, std::regex(name + " +([0-9.]+)")) ? std::stod(match[1])
                                                                           : std::nan("");
  }
  void ExpectLearned() const {
    EXPECT_NEAR(Number("step   1  loss"), 5.6, 0.3) << Log();  // About ln 256.
    EXPECT_LT(Number("step 161  loss"), 2.8) << Log();
    EXPECT_GT(Number("untrained"), 5.2) << Log();
    EXPECT_LT(Number(", trained"), 2.8) << Log();
    EXPECT_EQ(Number(", loaded"), Number(", trained")) << Log();
    EXPECT_EQ(Number("checkpoint"), Number(", trained")) << Log();
    EXPECT_EQ(ReadFile(folder_ / "checkpoints/latest"), "global_step200");
  }

  // From a copy, so that nothing of the tree is beside it.
  void BuildExample(const std::string& name) {
    fs::copy(DSAT_SOURCE_DIR "/examples/" + name, folder_ / name);
    ASSERT_EQ(Run(fmt::format("{0} -S {2} -B build -DCMAKE_PREFIX_PATH=$PWD/prefix"
                              " -DCMAKE_CXX_COMPILER={1} && {0} --build build",
                              CMAKE_PROGRAM, CXX_PROGRAM, name)),
              0)
        << Log();
  }

  const TempFolder folder_;
};

TEST_F(PackageTest, AProgramOutsideTheTreeTrainsAModelOfItsOwn) {
  ASSERT_EQ(Run(fmt::format("{} --install {} --prefix prefix", CMAKE_PROGRAM, BuildFolder())), 0)
      << Log();
  EXPECT_EQ(Run("prefix/bin/dsat --version"), 0) << Log();
  EXPECT_TRUE(fs::exists(folder_ / "prefix/bin/dsat-trial"));
  EXPECT_TRUE(fs::exists(folder_ / "prefix/share/doc/dsat/docs/experiment-file.md"));

  BuildExample("own-model");
  ASSERT_EQ(Run("build/own_model"), 0) << Log();
  ExpectLearned();

  WriteFileAtomic(folder_ / "zero3.json",
                  R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
                      "zero_optimization": {"stage": 3}})");
  fs::remove_all(folder_ / "checkpoints");
  ASSERT_EQ(Run("file=$(mktemp -p .); exec 3<>$file; rm $file; export DSAT_CONFIG=zero3.json "
                "WORLD_SIZE=2 DSAT_GROUP_FD=3; RANK=1 build/own_model & "
                "RANK=0 build/own_model && wait $!"),
            0)
      << Log();
  ExpectLearned();

  WriteFileAtomic(folder_ / "bf16.json",
                  R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}})");
  EXPECT_EQ(Run("build/own_model bf16.json"), 1);
  EXPECT_NE(Log().find("memory: f32 only"), std::string::npos) << Log();
  EXPECT_EQ(Run("DSAT_CONFIG=absent.json build/own_model"), 1);
  EXPECT_NE(Log().find("absent.json"), std::string::npos) << Log();

  fs::remove_all(folder_ / "build");
  BuildExample("distillation");
  ASSERT_EQ(Run("file=$(mktemp -p .); exec 3<>$file; rm $file; export WORLD_SIZE=2 "
                "DSAT_GROUP_FD=3; RANK=1 build/distill & RANK=0 build/distill && wait $!"),
            0)
      << Log();
  EXPECT_GT(Number("step   1  soft loss"), 1) << Log();
  EXPECT_LT(Number("step 201  soft loss"), 0.5) << Log();
  EXPECT_LT(Number("student"), 3) << Log();
}

}  // namespace
}  // namespace dsat
