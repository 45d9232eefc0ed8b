// The rules for prose in CONTRIBUTING.md, held by a test: spelling, words, paths and width of docs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "tests/source_tree.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// The files and folders whose prose is checked.
std::vector<std::string> Prose() {
  std::vector<std::string> names = {
      "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md",
      "docs",      "examples",        "python",       "scripts"};
  names.insert(names.end(), SourceFolders().begin(), SourceFolders().end());
  return names;
}

// All text files in Prose(), by their paths from the root.
std::vector<SourceFile> ProseFiles() {
  std::vector<fs::path> paths;
  for (const std::string& name : Prose()) {
    if (fs::is_directory(SourceRoot() / name)) {
      for (const auto& entry : fs::recursive_directory_iterator(SourceRoot() / name))
        paths.push_back(entry.path());
    } else {
      paths.push_back(SourceRoot() / name);
    }
  }
  std::vector<SourceFile> files;
  for (const fs::path& path : paths) {
    if (!fs::is_regular_file(path) || path.extension() == ".pyc" ||
        path.filename() == "prose_test.cc")
      continue;
    files.push_back(ReadSource(path));
  }
  return files;
}

// The text that prose must not contain, after a comma each: parts of words, and whole words between
// spaces.
constexpr char kBannedWords[] =
    ",analysed,artefact,behaviour,cancelled,cancelling,catalogue,centre,colour,favour,honour"
    ",initialis,labelled,labelling,learnt,licence,materialis,maximis,memoris,minimis,modelled"
    ",modelling,neighbour,normalis,optimis,organis,parallelise,quantis,realise,recognis,serialis"
    ",signalled,specialis,stabilis,summaris,synchronis,travelled,utilis,vectoris,whilst"
    ", mend , mends , mended , mending , on paper , go on with , go on from , goes on with "
    ", goes on from ,perceptron,matrix product,product of matrices,products of matrices,spare rows"
    ",travel dtype";

std::vector<std::string> BannedWords() {
  std::vector<std::string> words;
  for (const char* c = kBannedWords; *c != '\0'; ++c) {
    if (*c == ',') {
      words.emplace_back();
    } else {
      words.back() += *c;
    }
  }
  return words;
}

// The line in lower case between two spaces, with a space for everything that is not a letter.
std::string WordsOf(const std::string& line) {
  std::string words = " " + line + " ";
  std::transform(words.begin(), words.end(), words.begin(), [](unsigned char c) {
    return std::isalpha(c) != 0 ? static_cast<char>(std::tolower(c)) : ' ';
  });
  return words;
}

// The rules are in CONTRIBUTING.md. Names in capitals, such as gRPC's CANCELLED, are not ours.
void ExpectPlainEnglish(const std::string& line, const std::string& place) {
  static const std::vector<std::string> banned = BannedWords();
  const std::string words = WordsOf(line);
  for (const std::string& word : banned) {
    const size_t at = words.find(word);
    if (at == words.npos) continue;
    // ErrorCode names the statuses of gRPC, in gRPC's spelling, as are its functions.
    const bool is_grpc =
        line.find("kCancelled") != line.npos || line.find("IsCancelled") != line.npos;
    if (word == "cancelled" && is_grpc) continue;
    const std::string found = (" " + line + " ").substr(at, word.size());
    EXPECT_TRUE(std::none_of(found.begin(), found.end(),
                             [](unsigned char c) { return std::islower(c) != 0; }))
        << place << ": \"" << found << "\"; see CONTRIBUTING.md";
  }
}

TEST(ProseTest, ProseIsPlainAmericanEnglish) {
  for (const SourceFile& file : ProseFiles()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (file.path == "CONTRIBUTING.md" && file.lines[i].starts_with("|")) continue;  // Glossary.
      ExpectPlainEnglish(file.lines[i], file.path + ":" + std::to_string(i + 1));
    }
  }
}

// The text that begins a comment in a file of this kind; "" if its comments are not checked.
std::string CommentMark(const fs::path& path) {
  const std::string extension = path.extension();
  if (std::regex_match(extension, std::regex(R"(\.(cc|h|cu|proto))"))) return "// ";
  if (extension == ".sql") return "-- ";
  const bool has_hashes = extension == ".py" || path.filename() == "CMakeLists.txt" ||
                          (extension.empty() && path.parent_path() == "scripts");
  return has_hashes ? "# " : "";
}

// The column of the line's comment: `mark` outside of a text. npos if there is none.
size_t CommentColumn(const std::string& line, const std::string& mark) {
  size_t at = line.find(mark);
  while (at != line.npos && std::count(line.begin(), line.begin() + at, '"') % 2 != 0)
    at = line.find(mark, at + 1);
  return at;
}

// A relative clause without a noun, such as "Of the last step.", hides what it is about.
TEST(ProseTest, CommentsBeginWithASubject) {
  const std::regex clause("(Of|That|Those|What|Whose|Which) .*");
  for (const SourceFile& file : ProseFiles()) {
    const std::string mark = CommentMark(file.path);
    if (mark.empty()) continue;
    size_t column_before = std::string::npos;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      const size_t column = CommentColumn(line, mark);
      const bool continues = column == column_before && line.find_first_not_of(' ') == column;
      column_before = column;
      if (column == line.npos || continues) continue;
      EXPECT_FALSE(std::regex_match(line.substr(column + mark.size()), clause))
          << file.path << ":" << i + 1 << ": say who does what: " << line;
    }
  }
}

TEST(ProseTest, PathsInTheDocsExist) {
  const std::regex path(
      R"re((?:^|[\s`(])((?:base|bench|cli|db|docs|engine|examples|methods|profiler|proto|python|)re"
      R"re(scripts|searcher|tests)/[A-Za-z0-9_./-]*))re");
  const std::regex link(R"re(\]\(([A-Za-z0-9_./-]+)[)#])re");
  for (const SourceFile& file : ProseFiles()) {
    if (fs::path(file.path).extension() != ".md") continue;
    const auto expect = [&](const fs::path& target, const std::string& line) {
      EXPECT_TRUE(fs::exists(target)) << file.path << ": no " << target << ": " << line;
    };
    for (const std::string& line : file.lines) {
      using Matches = std::sregex_iterator;
      for (Matches it(line.begin(), line.end(), path), end; it != end; ++it) {
        std::string name = (*it)[1];
        while (name.back() == '.')
          name.pop_back();
        expect(SourceRoot() / name, line);
      }
      for (Matches it(line.begin(), line.end(), link), end; it != end; ++it)
        expect((SourceRoot() / file.path).parent_path() / (*it)[1].str(), line);
    }
  }
}

// Rows of tables and messages of dsat cannot be broken.
TEST(ProseTest, DocsHaveAtMost100Columns) {
  for (const SourceFile& file : ProseFiles()) {
    if (fs::path(file.path).extension() != ".md") continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (AnyPrefix(file.lines[i], {"|", "dsat: ", "ds_config.json: "})) continue;
      EXPECT_LE(NumColumns(file.lines[i]), 100) << file.path << ":" << i + 1;
    }
  }
}

}  // namespace
}  // namespace dsat
