// Finds the Python code, and asks the user's Python.
#include "searcher/command/import_hook.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"

namespace dsat {

namespace fs = std::filesystem;

namespace {

bool IsPython(const std::string& program) {
  return BaseName(program).starts_with("python");
}

// The JSON object that a shell's command prints; null if it prints none.
Json AnswerOf(const std::string& command) {
  FILE* const pipe = popen((command + " </dev/null").c_str(), "re");
  if (pipe == nullptr) return nullptr;
  std::string text;
  std::array<char, 512> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  pclose(pipe);
  const Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return answer.is_object() ? answer : Json();
}

}  // namespace

std::string PythonFolder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders = {program.parent_path() / "python",
                                   program.parent_path().parent_path() / "share/dsat/python",
                                   DSAT_PYTHON_SOURCE};
  if (const char* const given = std::getenv("DSAT_PYTHON_DIR")) folders = {given};
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / "hook/sitecustomize.py", error)) return fs::absolute(folder);
  }
  return "";
}

std::string PythonPath(const std::string& python_folder, const std::string& rest) {
  if (python_folder.empty()) return rest;
  return fmt::format("{0}/hook:{0}{1}{2}", python_folder, rest.empty() ? "" : ":", rest);
}

Json AskPython(const ExperimentSpec& spec, const std::vector<std::string>& arguments) {
  const std::string& program = spec.entrypoint.at(0);
  std::string command = fmt::format("cd {} && timeout 10 {}", ShellWord(spec.model_dir),
                                    ShellWord(IsPython(program) ? program : "python3"));
  for (const std::string& argument : arguments)
    command += " " + ShellWord(argument);
  return AnswerOf(command + " 2>/dev/null");
}

Json DryRun(const Json& request) {
  const std::string program = request.at("command").at(0);
  std::string python = IsPython(program) ? program : "python3";
  const fs::path beside = fs::path(program).parent_path() / "python3";
  if (!IsPython(program) && beside.has_parent_path() && fs::exists(beside)) python = beside;
  const char* const ours = std::getenv("PYTHONPATH");
  // The import hook runs where this variable is set.
  Json answer = AnswerOf(fmt::format(
      "cd {} && PYTHONPATH={} {}=/dev/null DSAT_MEASURE=memory exec {} -m dsat._dry_run {}",
      ShellWord(request.at("folder")),
      ShellWord(PythonPath(PythonFolder(), ours == nullptr ? "" : ours)), kConfigVariable,
      ShellWord(python), ShellWord(request.dump())));
  if (answer.is_null())
    Throw(ErrorCode::kFailedPrecondition, "{} -m dsat._dry_run ended without an answer", python);
  if (answer.contains("error"))
    Throw(ErrorCode::kFailedPrecondition, "{}", answer["error"].get<std::string>());
  return answer;
}

}  // namespace dsat
