// Tests the working folder of trials: links, refusals, replaced and kept files.
#include "searcher/input/trial_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class TrialContextTest : public testing::Test {
 protected:
  TrialContextTest() {
    Write("model/train.py");
    Write("model/conf/a.yaml");
    Write("lib/helper.py");
    Write("data/words.txt");
  }

  std::string Path(const std::string& name) const { return folder_ / name; }
  void Write(const std::string& name) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    WriteFileAtomic(Path(name), name);
  }
  std::vector<std::string> Names(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Path(folder)))
      names.push_back(entry.path().filename());
    return names;
  }
  void Make(const std::vector<std::string>& include) const {
    TrialContext(Path("out/context"), Path("model"), include).Keep();
  }
  std::string RefusalOf(const std::vector<std::string>& include) const {
    std::string message;
    CodeOf([&] { Make(include); }, &message);
    return message;
  }

  const TempFolder folder_;
};

TEST_F(TrialContextTest, LinksTheModelFoldersEntriesAndWhatIsIncluded) {
  Make({Path("lib/helper.py"), Path("lib/../data/")});
  EXPECT_THAT(Names("out/context"),
              UnorderedElementsAre("train.py", "conf", "helper.py", "data", ".dsat-context"));
  EXPECT_EQ(fs::read_symlink(Path("out/context/data")), Path("data"));
  EXPECT_EQ(ReadFile(Path("out/context/helper.py")), "lib/helper.py");
  EXPECT_EQ(ReadFile(Path("out/context/conf/a.yaml")), "model/conf/a.yaml");
}

TEST_F(TrialContextTest, DoesNotLinkTheFolderThatItLiesIn) {
  fs::create_directories(Path("model/dsat-out/3"));
  TrialContext(Path("model/dsat-out/3/context"), Path("model"), {Path("data")}).Keep();
  EXPECT_THAT(Names("model/dsat-out/3/context"),
              UnorderedElementsAre("train.py", "conf", "data", ".dsat-context"));
}

TEST_F(TrialContextTest, TwoPathsOfOneNameAreRefusedNamingBoth) {
  Write("lib/train.py");
  EXPECT_THAT(RefusalOf({Path("lib/train.py")}),
              AllOf(HasSubstr(Path("lib/train.py")), HasSubstr(Path("model/train.py"))));
  Write("other/helper.py");
  EXPECT_THAT(RefusalOf({Path("lib/helper.py"), Path("other/helper.py")}),
              AllOf(HasSubstr(Path("lib/helper.py")), HasSubstr(Path("other/helper.py"))));
  EXPECT_FALSE(fs::exists(Path("out")));
}

TEST_F(TrialContextTest, MissingPathsAreRefused) {
  EXPECT_THAT(RefusalOf({Path("none")}), HasSubstr("no such file"));
  fs::create_symlink(Path("gone"), Path("dangling"));
  EXPECT_THAT(RefusalOf({Path("dangling")}), HasSubstr("no such file"));
  EXPECT_THROW(TrialContext(Path("out/context"), Path("nowhere"), {Path("lib")}), Error);
}

TEST_F(TrialContextTest, ReplacesAnEarlierContextAndNothingThatItsLinksPointTo) {
  Make({Path("data"), Path("lib/helper.py")});
  WriteFileAtomic(Path("out/context/result.txt"), "a trial's");
  Make({Path("lib")});
  EXPECT_THAT(Names("out/context"),
              UnorderedElementsAre("train.py", "conf", "lib", "result.txt", ".dsat-context"));
  EXPECT_EQ(ReadFile(Path("out/context/result.txt")), "a trial's");
  EXPECT_THAT(Names("out"), UnorderedElementsAre("context"));
  EXPECT_EQ(ReadFile(Path("data/words.txt")), "data/words.txt");
  EXPECT_EQ(ReadFile(Path("lib/helper.py")), "lib/helper.py");
}

TEST_F(TrialContextTest, WhatATrialWroteIsNeverReplacedByALink) {
  Make({Path("data")});
  WriteFileAtomic(Path("out/context/helper.py"), "a trial's");
  EXPECT_THAT(RefusalOf({Path("lib/helper.py")}), HasSubstr("was written by a trial"));
  EXPECT_EQ(ReadFile(Path("out/context/helper.py")), "a trial's");
}

TEST_F(TrialContextTest, SomebodyElsesFolderIsRefused) {
  Write("out/context/thesis.tex");
  EXPECT_THAT(RefusalOf({Path("lib")}), HasSubstr("was not made by --include"));
  fs::remove_all(Path("out/context"));
  fs::create_symlink(Path("model"), Path("out/context"));
  EXPECT_THAT(RefusalOf({Path("lib")}), HasSubstr("was not made by --include"));
  EXPECT_TRUE(fs::exists(Path("model/train.py")));
}

TEST_F(TrialContextTest, UnlessItIsKeptWhatWasThereIsThereAgain) {
  Make({Path("data")});
  { const TrialContext other(Path("out/context"), Path("model"), {Path("lib")}); }
  EXPECT_THAT(Names("out/context"),
              UnorderedElementsAre("train.py", "conf", "data", ".dsat-context"));
  EXPECT_THAT(Names("out"), UnorderedElementsAre("context"));
}

TEST_F(TrialContextTest, NewFoldersAreNumbered) {
  EXPECT_EQ(NewContextDir(Path("out")), Path("out/context-1"));
  fs::create_directories(Path("out/context-1"));
  EXPECT_EQ(NewContextDir(Path("out")), Path("out/context-2"));
}

}  // namespace
}  // namespace dsat
