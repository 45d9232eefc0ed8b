// The environment variables that ranks on other hosts get.
//
// The choice of variables and the places of .deepspeed_env are those of DeepSpeed's
// launcher/runner.py.
#include "searcher/hosts/host_environment.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "searcher/command/command_words.h"

namespace dsat {
namespace {

constexpr std::array<std::string_view, 5> kExportedPrefixes = {"MLFLOW", "MV2", "NCCL", "PYTHON",
                                                               "UCX"};

}  // namespace

std::map<std::string, std::string> ExportedVariables(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> exported;
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals == variable.npos) continue;
    const std::string name = variable.substr(0, equals);
    const bool wanted =
        std::any_of(kExportedPrefixes.begin(), kExportedPrefixes.end(),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wanted && IsVariableName(name)) exported.emplace(name, variable.substr(equals + 1));
  }
  return exported;
}

std::map<std::string, std::string> ReadDeepSpeedEnv(const std::string& name,
                                                    const std::vector<std::string>& dirs) {
  std::map<std::string, std::string> variables;
  for (const std::string& dir : dirs) {
    const std::filesystem::path path = std::filesystem::path(dir) / name;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    std::istringstream lines(ReadFile(path.string()));
    int64_t number = 0;
    for (std::string raw; std::getline(lines, raw);) {
      ++number;
      const std::string line = Trimmed(raw);
      if (line.empty() || line[0] == '#') continue;
      const size_t equals = line.find('=');
      const std::string key = Trimmed(line.substr(0, equals));
      if (equals == line.npos || !IsVariableName(key) || line.find('\0') != line.npos) {
        Throw(ErrorCode::kInvalidArgument,
              "{}:{}: \"{}\" sets no variable; expected NAME=VALUE, such as NCCL_DEBUG=WARN",
              Printable(path.string()), number, Printable(line));
      }
      variables[key] = Trimmed(line.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace dsat
