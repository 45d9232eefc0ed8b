// Tests files, sizes, and the search for the nearest word.
#include "base/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/unique_fd.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / name; }

  const TempFolder folder_;
};

TEST_F(FilesTest, WhatIsWrittenIsRead) {
  std::string content(100000, 'x');
  content[5] = '\0';
  WriteFileAtomic(Path("a"), content);
  EXPECT_EQ(ReadFile(Path("a")), content);
  WriteFileAtomic(Path("a"), "");
  EXPECT_EQ(ReadFile(Path("a")), "");
}

TEST_F(FilesTest, WritingLeavesNoTemporaryFile) {
  WriteFileAtomic(Path("a"), "1");
  fs::create_directory(Path("taken"));
  EXPECT_THROW(WriteFileAtomic(Path("taken"), "1"), Error);
  EXPECT_THAT(folder_.Names(), testing::ElementsAre("a", "taken"));
}

TEST_F(FilesTest, AReaderSeesOldOrNewWhole) {
  std::string a(50000, 'a');
  std::string b(80000, 'b');
  WriteFileAtomic(Path("f"), a);
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i)
      WriteFileAtomic(Path("f"), i % 2 == 0 ? b : a);
  });
  for (int i = 0; i < 200; ++i) {
    std::string seen = ReadFile(Path("f"));
    EXPECT_TRUE(seen == a || seen == b) << seen.size();
  }
  writer.join();
}

TEST_F(FilesTest, TwoWritersDoNotDisturbEachOther) {
  std::string a(30000, 'a');
  std::string b(30000, 'b');
  std::thread other([&] {
    for (int i = 0; i < 30; ++i)
      WriteFileAtomic(Path("f"), a);
  });
  for (int i = 0; i < 30; ++i)
    WriteFileAtomic(Path("f"), b);
  other.join();
  std::string seen = ReadFile(Path("f"));
  EXPECT_TRUE(seen == a || seen == b);
}

TEST_F(FilesTest, APipeIsReadToItsEnd) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string content(200'000, 'x');
  std::thread writer([&] {
    const UniqueFd pipe(::open(Path("pipe").c_str(), O_WRONLY | O_CLOEXEC));
    for (size_t at = 0; at < content.size();) {
      const ssize_t count = ::write(pipe.get(), content.data() + at, content.size() - at);
      ASSERT_GT(count, 0);
      at += static_cast<size_t>(count);
    }
  });
  EXPECT_EQ(ReadFile(Path("pipe")), content);
  writer.join();
}

TEST_F(FilesTest, WhatHasNoEndIsNotRead) {
  std::string message;
  const auto refused = [&](const std::string& path, int64_t max_bytes) {
    return CodeOf([&] { ReadFile(path, max_bytes); }, &message) == ErrorCode::kInvalidArgument;
  };
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(refused(Path("pipe"), 100));
  EXPECT_EQ(message, "cannot read " + Path("pipe") + ": nobody has written to this pipe");
  EXPECT_TRUE(refused("/dev/zero", int64_t{1} << 40));
  EXPECT_EQ(message, "cannot read /dev/zero: it has more than 64.0 MiB");
  EXPECT_EQ(ReadFile("/dev/null"), "");
  WriteFileAtomic(Path("large"), std::string(2048, 'x'));
  EXPECT_TRUE(refused(Path("large"), 1024));
  EXPECT_EQ(message, "cannot read " + Path("large") + ": it has more than 1.0 KiB");
  EXPECT_EQ(ReadFile(Path("large"), 2048).size(), 2048);
}

TEST_F(FilesTest, ATemporaryFolderBelongsToThisUserAloneOrIsAnError) {
  const std::string folder = MakeTemporaryFolder();
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  fs::remove(folder);
  const char* const before = ::getenv("TMPDIR");
  const std::string restored = before == nullptr ? "/tmp" : before;
  for (const std::string& unusable : {Path("none"), std::string("/proc")}) {
    ::setenv("TMPDIR", unusable.c_str(), 1);
    std::string message;
    EXPECT_TRUE(CodeOf([] { MakeTemporaryFolder(); }, &message));
    EXPECT_THAT(message, HasSubstr(" in " + unusable + " (set TMPDIR to a folder): "));
  }
  ::setenv("TMPDIR", restored.c_str(), 1);
}

TEST_F(FilesTest, FailuresNameThePath) {
  EXPECT_EQ(CodeOf([&] { ReadFile(Path("none")); }), ErrorCode::kNotFound);
  WriteFileAtomic(Path("file"), "x");
  EXPECT_EQ(CodeOf([&] { ReadFile(Path("file/below")); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { WriteFileAtomic(Path("file/below"), "x"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { WriteFileAtomic(Path("none/below"), "x"); }), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf([&] { ReadFile(folder_.path()); }), ErrorCode::kUnavailable);
  EXPECT_TRUE(CodeOf([] { WriteFileAtomic("/proc/dsat", "x"); }));
  const Error error = ErrorOf([&] { MakeWritableFolder(Path("file/below")); });
  EXPECT_THAT(error.what(), HasSubstr(Path("file/below")));
}

TEST_F(FilesTest, MakesFoldersAndTheirParents) {
  MakeWritableFolder(Path("a/b/c"));
  MakeWritableFolder(Path("a/b/c"));
  EXPECT_TRUE(fs::is_directory(Path("a/b/c")));
  EXPECT_THROW(MakeWritableFolder("/proc/dsat"), Error);
  WriteFileAtomic(Path("file"), "x");
  EXPECT_THROW(MakeWritableFolder(Path("file")), Error);
}

TEST_F(FilesTest, TailGivesTheLastLines) {
  struct Case {
    std::string content;
    int max_lines;
    std::string tail;
  };
  const std::string wide(30000, 'w');
  const std::string bar(kMostOfTail, '.');  // A progress bar writes no ends of lines.
  const Case cases[] = {
      {"", 3, ""},
      {"one", 3, "one"},
      {"one\n", 3, "one"},
      {"one\ntwo\nthree\n", 2, "two\nthree"},
      {"one\ntwo\nthree", 2, "two\nthree"},
      {"one\ntwo\n\n", 2, "two\n"},
      {"\n\n\n", 2, "\n"},
      {"one\ntwo\n", 0, ""},
      {"one\ntwo\n", 2, "one\ntwo"},
      {"a\n" + wide + "\n" + wide + "\nz\n", 3, wide + "\n" + wide + "\nz"},
      {"a\n" + wide + "\nz\n", 1, "z"},
      {"a\n" + bar, 2, bar},
      {"a\nb" + bar + "\n", 2, bar.substr(1)},
  };
  for (const Case& c : cases) {
    WriteFileAtomic(Path("log"), c.content);
    EXPECT_EQ(TailLines(Path("log"), c.max_lines), c.tail) << c.content.substr(0, 20);
  }
  EXPECT_EQ(TailLines(Path("none"), 3), "");
}

TEST(HumanBytesTest, OneDecimalOfTheLargestUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(17), "17 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536 * 1024 * 1024LL), "1.5 GiB");
  EXPECT_EQ(HumanBytes(512LL << 20), "512.0 MiB");
  EXPECT_EQ(HumanBytes((1LL << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(-2048), "-2.0 KiB");
  EXPECT_EQ(HumanBytes(9223372036854775807), "8.0 EiB");
}

TEST(ParseBytesTest, BinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("1048576", "x"), 1048576);
  EXPECT_EQ(ParseBytes("0", "x"), 0);
  EXPECT_EQ(ParseBytes("17 B", "x"), 17);
  EXPECT_EQ(ParseBytes("512MiB", "x"), 512LL << 20);
  EXPECT_EQ(ParseBytes("4 GiB", "x"), 4LL << 30);
  EXPECT_EQ(ParseBytes("2GB", "x"), 2000000000);
  EXPECT_EQ(ParseBytes("1.5GiB", "x"), 3LL << 29);
  EXPECT_EQ(ParseBytes("3tib", "x"), 3LL << 40);
  EXPECT_EQ(ParseBytes("9223372036854775806", "x"), 9223372036854775806);
}

TEST(ParseBytesTest, AllElseIsRefusedByName) {
  for (const char* text :
       {"", "MiB", "-1", "1.5", "1e3", "4 GiBs", "4G", "4 i", "nan", "inf", "0x10", "10000000TiB",
        "9223372036854775808", "1 2", " 1", "1MB ", "KiB4"}) {
    EXPECT_THAT(RefusalOf([&] { ParseBytes(text, "/resources/device_memory"); }),
                HasSubstr("/resources/device_memory is \""))
        << text;
  }
}

TEST(NearestWordTest, SuggestsOnlyWhatIsClose) {
  const std::vector<std::string> words = {"train_batch_size", "optimizer", "bf16", "stage",
                                          "comet"};
  EXPECT_EQ(NearestWord("train_batchsize", words), "train_batch_size");
  EXPECT_EQ(NearestWord("Optimizer", words), "optimizer");
  EXPECT_EQ(NearestWord("optimzier", words), "optimizer");
  EXPECT_EQ(NearestWord("bf6", words), "bf16");
  EXPECT_EQ(NearestWord("stgae", words), "stage");
  EXPECT_EQ(NearestWord("comment", words), "");
  EXPECT_EQ(NearestWord("x", words), "");
  EXPECT_EQ(NearestWord("", words), "");
  EXPECT_EQ(NearestWord("stage", {}), "");
}

TEST(TrimmedTest, TakesBlanksFromBothEnds) {
  EXPECT_EQ(Trimmed(" \ta b\r"), "a b");
  EXPECT_EQ(Trimmed("a"), "a");
  EXPECT_EQ(Trimmed(" \t "), "");
  EXPECT_EQ(Trimmed(""), "");
}

TEST(PrintableTest, WritesControlCharactersOutAndKeepsUtf8) {
  EXPECT_EQ(Printable("plain \xc3\xbc"), "plain \xc3\xbc");
  EXPECT_EQ(Printable("\u202eltr\u2069 \u0085 \u2027\u202f"),
            "\\xe2\\x80\\xaeltr\\xe2\\x81\\xa9 \\xc2\\x85 \u2027\u202f");
  EXPECT_EQ(Printable(std::string_view("a\nb\tc\x1b[0m\x7f\0", 11)), "a\\nb\\tc\\x1b[0m\\x7f\\x00");
}

TEST(TextTest, ValidUtf8KeepsWhatIsValidAndReplacesTheRest) {
  for (const std::string text : {"", "abc", "é€😀", "a\xf4\x8f\xbf\xbfz", "\"\\\n\x01"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
  const std::string r = "\uFFFD";
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), r + r);                  // Overlong.
  EXPECT_EQ(ValidUtf8("\xe0\x80\xaf"), r + r + r);          // Overlong.
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), r + r + r);          // Surrogate.
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), r + r + r + r);  // Above U+10FFFF.
  EXPECT_EQ(ValidUtf8("ab\x80zz"), "ab" + r + "zz");        // A continuation byte alone.
  EXPECT_EQ(ValidUtf8("a\xe2\x82"), "a" + r);               // Cut off.
  EXPECT_EQ(ValidUtf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

}  // namespace
}  // namespace dsat
