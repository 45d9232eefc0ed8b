// Small helpers around files and text.
#ifndef DSAT_BASE_FILES_H_
#define DSAT_BASE_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsat {

// The whole content of a file. Throws kNotFound, kPermissionDenied or kUnavailable by name.
std::string ReadFile(const std::string& path);

// Replaces a file's content so that a reader, or a crash, sees the old or the new content whole
// (temporary file in the same folder, fsync, rename).
void WriteFileAtomic(const std::string& path, std::string_view content);

// Creates a folder and its parents. Throws if it cannot be written to, naming the folder.
void MakeWritableFolder(const std::string& path);

// The last `max_lines` lines of a file, "" if it does not exist.
std::string TailLines(const std::string& path, int max_lines);

// The last `max_bytes` bytes of a file, which may be growing; "" if it cannot be read.
std::string ReadEnd(const std::string& path, int64_t max_bytes);

// "512.0 MiB", "1.5 GiB", "17 B".
std::string HumanBytes(int64_t bytes);

// Bytes of "512MiB", "4 GiB", "2GB", "1048576". Binary suffixes KiB..TiB are powers of 1024, KB..TB
// powers of 1000. Throws kInvalidArgument naming `what` otherwise.
int64_t ParseBytes(std::string_view text, const std::string& what);

// `text` with every control character written out ("\\n", "\\x1b"), so that a name from outside
// can neither break a line nor steer a terminal. UTF-8 stays.
std::string Printable(std::string_view text);

// `text` as a shell reads it back: as it is, or in single quotes.
std::string ShellWord(const std::string& text);

// `text` without the blanks around it: spaces, tabs and carriage returns.
std::string Trimmed(std::string_view text);

// The candidate with the smallest edit distance to `word`, or "" if none is close.
std::string NearestWord(std::string_view word, std::span<const std::string> candidates);

}  // namespace dsat

#endif  // DSAT_BASE_FILES_H_
