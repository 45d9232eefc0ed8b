// Tests the messages of errors.
#include "base/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "base/log.h"

namespace dsat {
namespace {

TEST(ErrorTest, OfALongWordTheBeginningStays) {
  const std::string path(400, 'p');
  EXPECT_EQ(Error(ErrorCode::kInvalidArgument, path + ": no such file").what(),
            path + ": no such file");
  const std::string pasted(5000, 'x');
  EXPECT_EQ(Error(ErrorCode::kInvalidArgument, "f.json: /a is " + pasted + "; expected b").what(),
            "f.json: /a is " + std::string(100, 'x') + "... (5001 bytes) expected b");
  EXPECT_EQ(Error(ErrorCode::kInvalidArgument, pasted).what(),
            std::string(100, 'x') + "... (5000 bytes)");
}

TEST(ErrorTest, NoCharacterIsCut) {
  std::string pasted = "x";
  for (int i = 0; i < 300; ++i)
    pasted += "\u00e9";
  const std::string message = Error(ErrorCode::kInvalidArgument, pasted).what();
  EXPECT_EQ(message, pasted.substr(0, 99) + "... (601 bytes)");
}

TEST(ErrorTest, BytesThatOnlyContinueACharacterAreCutToo) {
  const std::string bytes(600, '\x80');
  EXPECT_STREQ(Error(ErrorCode::kInvalidArgument, bytes).what(), "... (600 bytes)");
}

TEST(ErrorTest, ExceptionsOfTheStandardLibrarySayWhatFailed) {
  namespace fs = std::filesystem;
  const auto code = [](std::errc error) { return std::make_error_code(error); };
  EXPECT_EQ(MessageOf(fs::filesystem_error("cannot remove all", "/a/b",
                                           code(std::errc::too_many_files_open))),
            "/a/b: Too many open files");
  EXPECT_EQ(MessageOf(fs::filesystem_error("cannot get current path",
                                           code(std::errc::no_such_file_or_directory))),
            "the current folder: No such file or directory");
  EXPECT_EQ(MessageOf(std::system_error(code(std::errc::resource_unavailable_try_again))),
            "cannot start a thread: Resource temporarily unavailable; allow more processes "
            "(ulimit -u) and memory");
  EXPECT_EQ(MessageOf(std::bad_alloc()), "out of memory");
  EXPECT_EQ(MessageOf(Error(ErrorCode::kNotFound, "f.json: no such file")), "f.json: no such file");
}

TEST(LogTest, WordsAreShortAndAPrefixComesFirst) {
  testing::internal::CaptureStderr();
  SetLogPrefix("<clear>");
  Log(LogLevel::kWarn, "f.json: /" + std::string(5000, 'k') + ": unknown key");
  SetLogPrefix("");
  Log(LogLevel::kInfo, "next", {{"host", "a\x1b"}, {"file", "a b\n"}});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("<clear>W ")) << said;
  EXPECT_NE(said.find("kkk... (5002 bytes) unknown key\nI "), said.npos) << said;
  EXPECT_TRUE(said.ends_with(" next host=a\\x1b file=\"a b\\n\"\n")) << said;
}

}  // namespace
}  // namespace dsat
