// The environment variables that ranks on other hosts get.
#include "searcher/hosts/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/error_code.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

TEST(ExportedVariablesTest, AreChosenByTheBeginningOfTheirNames) {
  EXPECT_THAT(
      ExportedVariables({"NCCL_DEBUG=WARN", "PYTHONPATH=/a:/b", "MLFLOW_URI=x=y", "UCX_TLS=",
                         "MV2_SMP=1", "PATH=/bin", "MY_NCCL=1", "nccl_debug=1", "NCCL"}),
      UnorderedElementsAre(Pair("NCCL_DEBUG", "WARN"), Pair("PYTHONPATH", "/a:/b"),
                           Pair("MLFLOW_URI", "x=y"), Pair("UCX_TLS", ""), Pair("MV2_SMP", "1")));
}

TEST(ExportedVariablesTest, ANameThatAShellCouldMisreadIsLeftOut) {
  EXPECT_THAT(ExportedVariables({"NCCL;x=1", "PYTHON.x=1", "UCX_%%=() { :; }"}), IsEmpty());
}

class DeepSpeedEnvTest : public testing::Test {
 protected:
  std::map<std::string, std::string> Read(const std::string& name = ".deepspeed_env") const {
    return ReadDeepSpeedEnv(name, {work_.Path("home"), work_.Path("here")});
  }

  Workspace work_;
};

TEST_F(DeepSpeedEnvTest, ALineIsAVariable) {
  work_.Write("here/.deepspeed_env",
              "NCCL_IB_DISABLE=1\n\n# of the network\n  A = b=c \r\nQUOTED=\"$HOME\"\nEMPTY=");
  EXPECT_THAT(Read(), UnorderedElementsAre(Pair("NCCL_IB_DISABLE", "1"), Pair("A", "b=c"),
                                           Pair("QUOTED", "\"$HOME\""), Pair("EMPTY", "")));
}

TEST_F(DeepSpeedEnvTest, BothFilesCountAndTheLaterOneWins) {
  EXPECT_THAT(Read(), IsEmpty());
  work_.Write("home/.deepspeed_env", "A=home\nB=home\n");
  EXPECT_THAT(Read(), UnorderedElementsAre(Pair("A", "home"), Pair("B", "home")));
  work_.Write("here/.deepspeed_env", "B=here\nC=here\n");
  EXPECT_THAT(Read(),
              UnorderedElementsAre(Pair("A", "home"), Pair("B", "here"), Pair("C", "here")));
}

TEST_F(DeepSpeedEnvTest, TheNameMayBeAnotherOrAPath) {
  work_.Write("here/cluster_env", "A=1\n");
  EXPECT_THAT(Read("cluster_env"), UnorderedElementsAre(Pair("A", "1")));
  EXPECT_THAT(Read(work_.Path("here/cluster_env")), UnorderedElementsAre(Pair("A", "1")));
}

TEST_F(DeepSpeedEnvTest, ALineThatSetsNothingIsRefusedWithItsNumber) {
  for (const char* line : {"NCCL_DEBUG", "export A=1", "=1", "1A=1", "A-B=1", "A;B=1"}) {
    work_.Write("here/.deepspeed_env", std::string("A=1\n\n") + line + "\n");
    const Error error = ErrorOf([&] { Read(); });
    EXPECT_THAT(error.what(), HasSubstr(work_.Path("here/.deepspeed_env") + ":3: \"" + line));
    EXPECT_THAT(error.what(), HasSubstr("expected NAME=VALUE"));
  }
}

}  // namespace
}  // namespace dsat
