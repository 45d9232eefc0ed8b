// Reaches hosts through the real ssh: the test starts a server that listens at two loopback
// addresses of this machine. Skipped where OpenSSH's server is not installed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/files.h"
#include "searcher/launch/rank_places.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kServer[] = "/usr/sbin/sshd";
constexpr char kPrivilegesFolder[] = "/run/sshd";  // The server wants it when root starts it.

const std::string kExperimentFile = std::string(R"(
entrypoint: builtin
resources: {slots_per_trial: 2}
searcher: {name: single, max_length: 4})") +
                                    kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 3}
})";

class RealSshTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kServer)) GTEST_SKIP() << kServer << " is not there";
    if (geteuid() == 0 && !fs::exists(kPrivilegesFolder))
      GTEST_SKIP() << kPrivilegesFolder << " is not there";
    for (const char* key : {"host_key", "user_key"})
      ASSERT_EQ(Run(fmt::format("ssh-keygen -q -t ed25519 -N '' -f {}", work.Path(key))), 0);
    const int port = FreePort();
    work.Write("sshd_config", fmt::format("Port {}\nListenAddress 127.0.0.2\n"
                                          "ListenAddress 127.0.0.3\nHostKey {}\n"
                                          "AuthorizedKeysFile {}\nPidFile none\n"
                                          "PasswordAuthentication no\nStrictModes no\n",
                                          port, work.Path("host_key"), work.Path("user_key.pub")));
    work.Write("ssh_config", fmt::format("Host w0\n  HostName 127.0.0.2\n"
                                         "Host w1\n  HostName 127.0.0.3\n"
                                         "Host *\n  Port {}\n  IdentityFile {}\n"
                                         "  UserKnownHostsFile /dev/null\n"
                                         "  StrictHostKeyChecking no\n  LogLevel ERROR\n",
                                         port, work.Path("user_key")));
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
    work.Write("hosts", "w0 slots=1\nw1 slots=1\n");
    StartServer();
  }

  void TearDown() override {
    if (!server_) return;
    kill(*server_, SIGTERM);
    WaitFor(*server_);
  }

  static int Run(const std::string& command) { return std::system(command.c_str()); }

  void StartServer() {
    server_ = fork();
    if (*server_ == 0) {
      execl(kServer, kServer, "-D", "-f", work.Path("sshd_config").c_str(), nullptr);
      _exit(127);
    }
    const std::string probe =
        fmt::format("ssh -F {} -o BatchMode=yes w1 true 2>/dev/null", work.Path("ssh_config"));
    for (int i = 0; i < 100 && Run(probe) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_EQ(Run(probe), 0) << "the server does not answer";
  }

  std::vector<std::string> Train(const std::vector<std::string>& more) const {
    return Joined({"train", "deepspeed.yaml", "--out", "out", "--hostfile", "hosts", "--ssh",
                   "ssh -o BatchMode=yes -F " + work.Path("ssh_config")},
                  more);
  }

  Workspace work;
  std::optional<pid_t> server_;
};

TEST_F(RealSshTest, ATrainingRunsOnBothHosts) {
  EXPECT_THAT(work.Succeed(Train({})).out, HasSubstr("4/4"));
  EXPECT_TRUE(fs::exists(work.Path("out/checkpoint/latest")));
}

TEST_F(RealSshTest, AConnectionThatBreaksEndsTheTrainingOnBothHosts) {
  const pid_t pid = work.StartDsat(Train({"--steps", "1000000"}), "train");
  ASSERT_TRUE(work.WaitUntilSaid("train.out", "step"));
  const std::vector<pid_t> lines = ProcessesWith(work.Path("ssh_config"), {"\0w1\0", 4});
  ASSERT_EQ(lines.size(), 1u);
  kill(lines[0], SIGKILL);
  EXPECT_EQ(WaitFor(pid), 1);
  EXPECT_THAT(ReadFile(work.Path("train.err")), HasSubstr("host w1: the connection ended"));
  // The other side notices it a moment later.
  for (int i = 0; i < 200 && !ProcessesWith("dsat-trial", work.Path("")).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(ProcessesWith("dsat-trial", work.Path("")).empty());
}

TEST_F(RealSshTest, AHostWithoutAServerIsNamedInSshsWords) {
  work.Write("hosts", "w0 slots=1\n127.0.0.9 slots=1\n");
  const Finished run = work.Fail(Train({}), "host 127.0.0.9: ssh: connect to host 127.0.0.9 port");
  EXPECT_THAT(run.err, HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace dsat
