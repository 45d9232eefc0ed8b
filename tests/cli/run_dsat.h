// Runs the real dsat binary in a folder of its own and catches what it prints.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "tests/temp_folder.h"

namespace dsat {

// The end of an experiment file: a GPT-2 that trains for a second, with the config ds_config.json.
inline constexpr char kSmallTraining[] = R"(
hyperparameters:
  deepspeed_config: ds_config.json
  model: {type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 32, vocab_size: 256}
  data: {type: text, path: /usr/share/common-licenses, seq_len: 32}
)";

struct Finished {
  int exit_code = 0;  // 128 + signal if it was killed.
  std::string out;
  std::string err;
};

// A new temporary folder. The destructor kills the processes that still run, and removes it.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::string Path(const std::string& name) const { return folder_ / name; }
  void Write(const std::string& name, const std::string& content) const;
  // Runs `dsat args...` there to its end, with `input` as its standard input.
  Finished Dsat(const std::vector<std::string>& args, const std::string& input = "") const;
  // The same of a command that must succeed.
  Finished Succeed(const std::vector<std::string>& args, const std::string& input = "") const;
  // The JSON that it prints.
  Json DsatJson(const std::vector<std::string>& args) const;
  // The same of a command that must end with `exit_code` and errors that say `what`.
  Finished Fail(const std::vector<std::string>& args, const std::string& what,
                int exit_code = 1) const;
  // The same of one that prints nothing but a line of error.
  void ExpectRefused(const std::vector<std::string>& args, const std::string& what,
                     int exit_code = 1) const;
  // Runs it with a terminal of `columns` columns as its standard error, and returns its content.
  std::string DsatOnTerminal(const std::vector<std::string>& args, int columns,
                             const std::string& term = "xterm") const;
  // Starts it without waiting; its output goes to the files `name`.out and `name`.err.
  pid_t StartDsat(const std::vector<std::string>& args, const std::string& name) const;
  // Waits until the file `name` is there with `text` in it; false if it is not within a minute.
  bool WaitUntilSaid(const std::string& name, const std::string& text = "") const;

 private:
  const TempFolder folder_;
  mutable std::vector<pid_t> started_ = {};
};

// Waits for a process started with StartDsat; its exit code, 128 + signal if it was killed.
int WaitFor(pid_t pid);

// `args` with `more` behind them.
std::vector<std::string> Joined(std::vector<std::string> args,
                                const std::vector<std::string>& more);

// Processes (no zombies) whose command line has both texts; an argument ends with '\0'.
std::vector<pid_t> ProcessesWith(const std::string& one, const std::string& other = "");

// The Python of DSAT_TEST_PYTHON, /usr/bin/python3 if it is not set.
std::string Python();

// Whether it has a package; to import it would take seconds.
bool HasPackage(const std::string& name);

// Lines of a text.
int CountLines(const std::string& text);

}  // namespace dsat
