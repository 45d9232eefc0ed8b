// Small helpers for files and text.
#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file_writer.h"
#include "base/unique_fd.h"

namespace dsat {
namespace {

// Waits until a pipe has content or an end.
void Await(int pipe, int timeout_ms) {
  pollfd news = {pipe, POLLIN, 0};
  ::poll(&news, 1, timeout_ms);
}

// Repeats read() until it is not interrupted and a pipe that has a writer has content. Throws on
// errors.
size_t ReadSome(int fd, char* data, size_t size, const std::string& path) {
  for (;;) {
    ssize_t count = ::read(fd, data, size);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR && errno != EAGAIN) ThrowErrno("cannot read " + path, errno);
    if (errno == EAGAIN) Await(fd, -1);
  }
}

// The number of edits that turn `a` into `b`: insert, delete, replace, or swap two adjacent
// characters.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// The bytes of a unit, whose name is case-insensitive; 0 if the unit is unknown.
int64_t UnitBytes(std::string_view unit) {
  const std::string name = LowerCase(unit);
  if (name.empty() || name == "b") return 1;
  size_t power = std::string_view("kmgt").find(name[0]) + 1;  // npos + 1 is 0
  bool binary = name.substr(1) == "ib";
  if (power == 0 || (!binary && name.substr(1) != "b")) return 0;
  int64_t bytes = 1;
  for (size_t i = 0; i < power; ++i)
    bytes *= binary ? 1024 : 1000;
  return bytes;
}

}  // namespace

std::string ReadFile(const std::string& path, int64_t max_bytes) {
  constexpr int kWriterWaitMs = 2000;
  constexpr int64_t kMostUnsizedBytes = int64_t{64} << 20;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) ThrowErrno("cannot read " + path, errno);
  const bool is_pipe = S_ISFIFO(status.st_mode);
  // A device or a pipe may have no end.
  if (!S_ISREG(status.st_mode)) max_bytes = std::min(max_bytes, kMostUnsizedBytes);
  if (is_pipe) Await(fd.get(), kWriterWaitMs);
  std::string content;
  std::array<char, 1 << 14> buffer;
  while (size_t count = ReadSome(fd.get(), buffer.data(), buffer.size(), path)) {
    content.append(buffer.data(), count);
    if (std::ssize(content) > max_bytes) {
      Throw(ErrorCode::kInvalidArgument, "cannot read {}: it has more than {}", path,
            HumanBytes(max_bytes));
    }
  }
  if (is_pipe && content.empty())
    Throw(ErrorCode::kInvalidArgument, "cannot read {}: nobody has written to this pipe", path);
  return content;
}

std::string ReadOrEmpty(const std::string& path) {
  try {
    return ReadFile(path);
  } catch (const Error&) {
    return "";
  }
}

void WriteFileAtomic(const std::string& path, std::string_view content, bool waits_for_disk) {
  FileWriter writer(path);
  writer.Write(content);
  writer.Commit(waits_for_disk);
}

std::string FindProgram(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + name;
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

ShellAnswer RunShell(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return {std::string("cannot start a shell: ") + strerror(errno), 127};
  ShellAnswer answer;
  std::array<char, 512> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), pipe))
    answer.text.append(part.data(), count);
  const int status = pclose(pipe);
  answer.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return answer;
}

void MakeWritableFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) ThrowErrno("cannot create folder " + path, error.value());
  if (!std::filesystem::is_directory(path)) ThrowErrno("cannot use folder " + path, ENOTDIR);
  if (::access(path.c_str(), W_OK | X_OK) != 0) ThrowErrno("cannot write to folder " + path, errno);
}

std::string MakeTemporaryFolder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  std::string path = folder / "dsat-XXXXXX";
  if (error || ::mkdtemp(path.data()) == nullptr) {
    const char* given = std::getenv("TMPDIR");
    const std::string where = !error ? folder.string() : given != nullptr ? given : "";
    ThrowErrno(fmt::format("cannot create a folder for temporary files{} (set TMPDIR to a folder)",
                           where.empty() ? "" : " in " + where),
               error ? error.value() : errno);
  }
  return path;
}

std::string TailLines(const std::string& path, int max_lines) {
  if (max_lines <= 0) return "";
  std::string tail = ReadEnd(path, kMostOfTail);
  if (tail.ends_with('\n')) tail.pop_back();  // A final newline does not start a line.
  size_t start = tail.size();
  for (int i = 0; i < max_lines && start != tail.npos && start > 0; ++i) {
    start = tail.rfind('\n', start - 1);
  }
  return start == tail.npos || tail.empty() || tail[start] != '\n' ? tail : tail.substr(start + 1);
}

std::string ReadEnd(const std::string& path, int64_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const int64_t size = file.tellg();
  const int64_t begin = std::max<int64_t>(0, size - max_bytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string Counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (std::abs(value) >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

int64_t ParseBytes(std::string_view text, const std::string& what) {
  long double value = 0;
  const char* end = text.data() + text.size();
  bool starts_well = !text.empty() && text[0] >= '0' && text[0] <= '9';
  auto [number_end, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  std::string_view unit(number_end, static_cast<size_t>(end - number_end));
  while (unit.starts_with(' '))
    unit.remove_prefix(1);
  int64_t scale = UnitBytes(unit);
  bool whole = scale > 1 || value == std::floor(value);
  value = std::round(value * static_cast<long double>(scale));
  bool fits = value < static_cast<long double>(std::numeric_limits<int64_t>::max());
  if (!starts_well || error != std::errc() || scale == 0 || !whole || !fits) {
    Throw(ErrorCode::kInvalidArgument,
          "{} is \"{}\"; expected a size such as 1048576, 512MiB or 2GB", what, text);
  }
  return static_cast<int64_t>(value);
}

// The bytes of the control character that the text begins with, 0 if it does not begin with one.
// Characters that change the direction of writing count.
static size_t LengthOfControl(std::string_view text) {
  const auto at = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  if (at(0) < 0x20 || at(0) == 0x7f) return 1;
  if (at(0) == 0xc2 && at(1) >= 0x80 && at(1) < 0xa0) return 2;
  if (at(0) != 0xe2) return 0;
  const int last = at(2);
  const bool is_direction = at(1) == 0x80
                                ? (last >= 0xaa && last <= 0xae) || last == 0x8e || last == 0x8f
                                : at(1) == 0x81 && last >= 0xa6 && last <= 0xa9;
  return is_direction ? 3 : 0;
}

std::string Printable(std::string_view text) {
  std::string out;
  size_t escaped = 0;  // Up to here.
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    escaped = std::max(escaped, i + LengthOfControl(text.substr(i)));
    if (i >= escaped) {
      out += c;
    } else {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

std::string ValidUtf8(const std::string& text) {
  using nlohmann::json;
  if (std::ranges::all_of(text, [](unsigned char c) { return c < 0x80; })) return text;
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(quoted).get<std::string>();
}

std::string ShellWord(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("/._-+=:@%,").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

size_t CodePoints(std::string_view text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return static_cast<size_t>(std::ranges::count_if(text, begins));
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

std::string Trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\v\f\r";
  const size_t first = text.find_first_not_of(blanks);
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

std::string NearestWord(std::string_view word, std::span<const std::string> candidates) {
  const std::string lower = LowerCase(word);
  std::string nearest;
  size_t best = std::clamp<size_t>(word.size() / 4, 1, 3) + 1;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (longer - shorter >= best) continue;  // A quick answer, also for words of any length.
    size_t distance = EditDistance(lower, LowerCase(candidate));
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace dsat
