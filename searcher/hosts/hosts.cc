// DeepSpeed's hostfile and its filters, and the environment variables that ranks on other hosts
// get.
//
// The formats, their errors and the choice of variables are those of DeepSpeed's
// launcher/runner.py.
#include "searcher/hosts/hosts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "searcher/command/command_words.h"

namespace dsat {
namespace {

constexpr char kBlanks[] = " \t\v\f\r";
constexpr std::string_view kSlots = "slots=";
constexpr char kInclude[] = "--include-hosts";
constexpr char kExclude[] = "--exclude-hosts";
constexpr char kFilterGrammar[] = "NAME[:SLOT[,SLOT...]][@NAME...]";

bool IsHostCharacter(unsigned char c) {
  return c < 0x80 && (std::isalnum(c) != 0 || std::string_view("._-:[]").find(
                                                  static_cast<char>(c)) != std::string_view::npos);
}

// The number that `text` begins with, nullopt if it does not, or if that is above the limit.
std::optional<int64_t> LeadingNumber(std::string_view text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number > kMostSlotsOfHost) return std::nullopt;
  return number;
}

// The host of one line without the blanks around it; throws saying what is wrong with it.
Host ParseEntry(const std::string& line) {
  const auto refuse = [](const std::string& why) {
    Throw(ErrorCode::kInvalidArgument,
          "{}; expected NAME slots=N with at most {} slots, such as worker-1 slots=4", why,
          kMostSlotsOfHost);
  };
  const size_t name_end = line.find_first_of(kBlanks);
  const size_t second = line.find_first_not_of(kBlanks, name_end);
  const std::string rest = second == line.npos ? "" : line.substr(second);
  const std::optional<int64_t> num_slots =
      rest.starts_with(kSlots) ? LeadingNumber(rest.substr(kSlots.size())) : std::nullopt;
  // A carriage return within a line would hide the following entries.
  if (!num_slots || line.find('\r') != line.npos)
    refuse(fmt::format("\"{}\" is not a valid entry", Printable(line)));
  Host host{.name = line.substr(0, name_end),
            .slots = std::vector<int64_t>(static_cast<size_t>(*num_slots))};
  CheckHostName(host.name);
  std::iota(host.slots.begin(), host.slots.end(), 0);
  return host;
}

// The slots that a filter gives, by the index of the host in the hostfile; no slots = all.
using Chosen = std::map<size_t, std::set<int64_t>>;

// Parses one filter.
class FilterReader {
 public:
  // `option` is the name of the filter in errors.
  FilterReader(std::string option, const std::string& filter, const std::vector<Host>& hosts)
      : option_(std::move(option)), filter_(filter), hosts_(hosts) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      index_.emplace(hosts[i].name, i);
      longest_name_ = std::max(longest_name_, hosts[i].name.size());
    }
  }

  Chosen Read() {
    Chosen chosen;
    do {
      const size_t host = ReadHost();
      std::set<int64_t>& slots = chosen[host];
      if (Take(':')) {
        do {
          slots.insert(ReadSlot(hosts_[host]));
        } while (Take(','));
      }
    } while (Take('@'));
    return chosen;
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    Throw(ErrorCode::kInvalidArgument, "{} {}: {}", option_, Printable(filter_), why);
  }

  std::string Until(size_t begin, const char* ends) const {
    return filter_.substr(begin, filter_.find_first_of(ends, begin) - begin);
  }

  bool Take(char c) {
    if (at_ == filter_.size() || filter_[at_] != c) return false;
    ++at_;
    return true;
  }

  size_t ReadHost() {
    size_t found = hosts_.size();
    const size_t last = std::min(filter_.size(), at_ + longest_name_);
    for (size_t end = at_; end <= last; ++end) {
      if (end != filter_.size() && filter_[end] != ':' && filter_[end] != '@') continue;
      const auto named = index_.find(filter_.substr(at_, end - at_));
      if (named != index_.end()) found = named->second;
    }
    if (found == hosts_.size()) RefuseHost();
    at_ += hosts_[found].name.size();
    return found;
  }

  [[noreturn]] void RefuseHost() const {
    std::vector<std::string> names;
    for (const Host& host : hosts_)
      names.push_back(host.name);
    const std::string given = Until(at_, ":@");
    const std::string near = NearestWord(given, names);
    Refuse(fmt::format("no host \"{}\" in the hostfile{}; expected {}", Printable(given),
                       near.empty() ? "" : fmt::format(", did you mean {}?", near),
                       kFilterGrammar));
  }

  int64_t ReadSlot(const Host& host) {
    const std::string text = Until(at_, ",@");
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    if (text.starts_with("GPU-") || text.starts_with("MIG-")) {
      Refuse(
          fmt::format("\"{}\" is no slot, which are numbers: slot N is device N of those that "
                      "CUDA_VISIBLE_DEVICES lists on that host (from 0), if it is set there",
                      Printable(text)));
    }
    if (!digits) {
      Refuse(fmt::format("\"{}\" is no slot; expected {}", Printable(text), kFilterGrammar));
    }
    const std::optional<int64_t> slot = LeadingNumber(text);
    if (!slot || !std::binary_search(host.slots.begin(), host.slots.end(), *slot)) {
      Refuse(fmt::format("host {} has no slot {}; the hostfile gives it {}", host.name, text,
                         host.slots.size()));
    }
    at_ += text.size();
    return *slot;
  }

  std::string option_;
  const std::string& filter_;
  const std::vector<Host>& hosts_;
  std::map<std::string, size_t> index_;  // The indices of hosts_, by name.
  size_t longest_name_ = 0;
  size_t at_ = 0;
};

std::vector<Host> Include(const std::vector<Host>& hosts, const std::string& filter) {
  std::vector<Host> included;
  for (const auto& [index, slots] : FilterReader(kInclude, filter, hosts).Read()) {
    included.push_back(hosts[index]);
    if (!slots.empty()) included.back().slots.assign(slots.begin(), slots.end());
  }
  return included;
}

std::vector<Host> Exclude(std::vector<Host> hosts, const std::string& filter) {
  for (const auto& [index, named] : FilterReader(kExclude, filter, hosts).Read()) {
    const std::set<int64_t>& slots = named;
    std::erase_if(hosts[index].slots,
                  [&slots](int64_t slot) { return slots.empty() || slots.contains(slot); });
  }
  return hosts;
}

void KeepFirstHosts(std::vector<Host>& hosts, int64_t num_nodes) {
  if (num_nodes > static_cast<int64_t>(hosts.size())) {
    Throw(ErrorCode::kInvalidArgument, "--num_nodes {}: the hostfile has {} with slots", num_nodes,
          Counted(std::ssize(hosts), "host"));
  }
  hosts.resize(static_cast<size_t>(num_nodes));
}

void KeepFirstSlots(std::vector<Host>& hosts, int64_t num_gpus) {
  for (Host& host : hosts) {
    if (num_gpus > static_cast<int64_t>(host.slots.size())) {
      Throw(ErrorCode::kInvalidArgument, "--num_gpus {}: host {} has {} in the hostfile", num_gpus,
            host.name, Counted(std::ssize(host.slots), "slot"));
    }
    host.slots.resize(static_cast<size_t>(num_gpus));
  }
}

constexpr std::array<std::string_view, 5> kExportedPrefixes = {"MLFLOW", "MV2", "NCCL", "PYTHON",
                                                               "UCX"};

}  // namespace

void CheckHostName(const std::string& name) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part[0] != '-' && std::ranges::all_of(part, IsHostCharacter);
  };
  const size_t at = name.find('@');
  const bool good =
      at == name.npos ? is_part(name) : is_part(name.substr(0, at)) && is_part(name.substr(at + 1));
  if (good) return;
  Throw(
      ErrorCode::kInvalidArgument,
      "\"{}\" is no name of a host; expected HOST or USER@HOST of letters, digits and . _ - : [ ], "
      "not beginning with -",
      Printable(name));
}

std::vector<Host> ReadHostfile(const std::string& path) {
  std::istringstream lines(ReadFile(path));
  std::vector<Host> hosts;
  std::map<std::string, int64_t> line_of;
  int64_t number = 0;
  const auto refuse = [&](const std::string& why) {
    Throw(ErrorCode::kInvalidArgument, "{}:{}: {}", Printable(path), number, why);
  };
  for (std::string raw; std::getline(lines, raw);) {
    ++number;
    const std::string line = Trimmed(raw);
    if (line.empty() || line[0] == '#') continue;
    try {
      hosts.push_back(ParseEntry(line));
    } catch (const Error& error) {
      refuse(error.what());
    }
    const auto [first, is_new] = line_of.emplace(hosts.back().name, number);
    if (!is_new)
      refuse(fmt::format("host {} is in line {} already", hosts.back().name, first->second));
  }
  if (hosts.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: no host; expected lines of NAME slots=N, such as worker-1 slots=4", Printable(path));
  }
  return hosts;
}

void ValidateFilters(const HostFilters& filters) {
  const bool counted = filters.num_nodes > 0 || filters.num_gpus > 0;
  if (!filters.include.empty() && !filters.exclude.empty())
    Throw(ErrorCode::kInvalidArgument, "{} excludes {}", kInclude, kExclude);
  if (!counted || (filters.include.empty() && filters.exclude.empty())) return;
  Throw(ErrorCode::kInvalidArgument, "{} excludes {}",
        filters.num_nodes > 0 ? "--num_nodes" : "--num_gpus",
        filters.include.empty() ? kExclude : kInclude);
}

std::vector<Host> SelectHosts(const std::vector<Host>& hosts, const HostFilters& filters) {
  ValidateFilters(filters);
  std::vector<Host> selected = !filters.include.empty()   ? Include(hosts, filters.include)
                               : !filters.exclude.empty() ? Exclude(hosts, filters.exclude)
                                                          : hosts;
  std::erase_if(selected, [](const Host& host) { return host.slots.empty(); });
  if (selected.empty()) {
    Throw(ErrorCode::kInvalidArgument, "{}: no slot is left",
          !filters.include.empty()   ? fmt::format("{} {}", kInclude, Printable(filters.include))
          : !filters.exclude.empty() ? fmt::format("{} {}", kExclude, Printable(filters.exclude))
                                     : "the hostfile");
  }
  if (filters.num_nodes > 0) KeepFirstHosts(selected, filters.num_nodes);
  if (filters.num_gpus > 0) KeepFirstSlots(selected, filters.num_gpus);
  return selected;
}

std::map<std::string, std::string> ExportedVariables(const std::vector<std::string>& environment) {
  std::map<std::string, std::string> exported;
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals == variable.npos) continue;
    const std::string name = variable.substr(0, equals);
    const bool wanted = std::ranges::any_of(
        kExportedPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
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
