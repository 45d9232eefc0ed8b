// Tests programs that are started with a socket: what they inherit, and that none stays stopped.
#include "searcher/processes/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/files.h"
#include "tests/searcher/launch/launch_test_util.h"

namespace dsat {
namespace {

TEST(SpawnTest, AProgramThatIsStoppedAtOnceIsContinuedWhenItsRunnerIsKilled) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // Orphans become our children.
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd in(fds[0]), out(fds[1]);
  const pid_t runner = fork();
  if (runner == 0) {
    const Spawned spawned = Spawn({"sh", "-c", "kill -STOP $$; exit 7"}, -1, "sh");
    if (write(out.get(), &spawned.pid, sizeof(spawned.pid)) < 0) _exit(1);
    while (true)
      pause();
  }
  pid_t program = 0;
  ASSERT_EQ(read(in.get(), &program, sizeof(program)), sizeof(program));
  const std::string stat = "/proc/" + std::to_string(program) + "/stat";
  EXPECT_TRUE(Eventually([&] { return ReadOrEmpty(stat).find(") T ") != std::string::npos; }));
  kill(runner, SIGKILL);
  EXPECT_EQ(waitpid(runner, nullptr, 0), runner);
  int status = 0;
  const bool ended = Eventually([&] { return waitpid(program, &status, WNOHANG) == program; });
  EXPECT_TRUE(ended);
  if (!ended) {
    kill(program, SIGKILL);
    waitpid(program, &status, 0);
  }
  EXPECT_EQ(WEXITSTATUS(status), 7);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(SpawnTest, AProgramInheritsTheStandardFilesOnly) {
  const UniqueFd leaked(fcntl(STDERR_FILENO, F_DUPFD, 57));  // Inherited across exec.
  Spawned spawned = Spawn({"sh", "-c", "ls /proc/$$/fd"}, -1, "sh");
  EXPECT_EQ(waitpid(spawned.pid, nullptr, 0), spawned.pid);
  char text[64] = {};
  EXPECT_GT(read(spawned.socket.get(), text, sizeof(text) - 1), 0);
  EXPECT_STREQ(text, "0\n1\n2\n");
}

TEST(SpawnTest, AProgramThatCannotBeStartedIsNamed) {
  EXPECT_THROW(Spawn({"/no/such/program"}, -1, "/no/such/program"), Error);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace
}  // namespace dsat
