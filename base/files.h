// Small helpers for files and text.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace dsat {

// The whole content of a file or a pipe. Throws kNotFound, kPermissionDenied, kUnavailable or, for
// a pipe that gets no content and what has more than `max_bytes` (at most 64 MiB if it is no
// regular file), kInvalidArgument, naming the file.
std::string ReadFile(const std::string& path,
                     int64_t max_bytes = std::numeric_limits<int64_t>::max());
// The same, but "" if the file cannot be read.
std::string ReadOrEmpty(const std::string& path);

// Replaces a file's content atomically (temporary file in the same folder, fsync, rename): a reader
// sees either the old or the new content, even after a crash. What the processes of one run hand to
// each other, and what can be made again, need not wait for the disk.
void WriteFileAtomic(const std::string& path, std::string_view content, bool waits_for_disk = true);

// The path of the file of this name in the first folder of PATH that has one; "" if none does.
std::string FindProgram(const std::string& name);

// The output of a shell's command, and its exit code: 1 if a signal has ended it, and 127 with the
// reason as output if there is no shell.
struct ShellAnswer {
  std::string text;
  int exit_code = 0;
};
ShellAnswer RunShell(const std::string& command);

// Creates a folder and its parents. Throws if the folder is not writable, naming it.
void MakeWritableFolder(const std::string& path);

// Creates a folder for temporary files that only this user may open, and returns its path. Throws
// if there is no place for it.
std::string MakeTemporaryFolder();

// The last `max_lines` lines of a file, but at most kMostOfTail bytes; "" if it cannot be read.
inline constexpr int64_t kMostOfTail = int64_t{64} << 10;
std::string TailLines(const std::string& path, int max_lines);

// The last `max_bytes` bytes of a file, to which others may append; "" if it cannot be read.
std::string ReadEnd(const std::string& path, int64_t max_bytes);

// "512.0 MiB", "1.5 GiB", "17 B".
std::string HumanBytes(int64_t bytes);

// "1 rank", or "2 ranks" for other counts.
std::string Counted(int64_t count, std::string_view noun);

// The bytes of "512MiB", "4 GiB", "2GB" or "1048576". The suffixes KiB..TiB are powers of 1024,
// KB..TB powers of 1000. Throws kInvalidArgument naming `what` for any other text.
int64_t ParseBytes(std::string_view text, const std::string& what);

// `text` with every control character escaped ("\\n", "\\x1b"), so that untrusted text can neither
// break a line nor control a terminal nor change the direction of writing. Other UTF-8 is kept.
std::string Printable(std::string_view text);

// `text` with U+FFFD in place of every invalid UTF-8 sequence: the log of a user's program may
// contain any bytes, but JSON and protobuf strings are UTF-8.
std::string ValidUtf8(const std::string& text);

// The number of characters of UTF-8 in `text`.
size_t CodePoints(std::string_view text);

// `text` as one word of a shell's command line: unchanged, or in single quotes.
std::string ShellWord(const std::string& text);

// `text` with ASCII letters in lower case.
std::string LowerCase(std::string_view text);

// `text` without leading and trailing blanks (spaces, tabs, carriage returns).
std::string Trimmed(std::string_view text);

// The candidate with the smallest edit distance to `word`, or "" if no candidate is similar.
std::string NearestWord(std::string_view word, std::span<const std::string> candidates);

}  // namespace dsat
