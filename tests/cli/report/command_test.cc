// Runs dsat report after a real search, and looks at the page in a real browser.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/report/read_page.h"
#include "tests/cli/run_dsat.h"
#include "tests/db/store_fixtures.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kExperimentFile = std::string(R"(
name: "tiny </title><img src=x onerror=alert(1)>"
entrypoint: builtin
resources: {slots_per_trial: 2, device_memory: 6MiB}
searcher: {name: single, max_length: {batches: 6}})") +
                                    kSmallTraining;
constexpr char kDsConfig[] = R"({
  "train_micro_batch_size_per_gpu": 1,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 100000, "allgather_bucket_size": 100000}
})";

class ReportCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    work.Write("deepspeed.yaml", kExperimentFile);
    work.Write("ds_config.json", kDsConfig);
  }
  void Create() const { work.Succeed({"create", "random", "deepspeed.yaml"}); }
  pid_t StartSearch(const std::string& max_trials) const {
    return work.StartDsat(
        {"grid", "deepspeed.yaml", "--max-trials", max_trials, "--confirm", "0", "--out", "out"},
        "search");
  }

  Workspace work;
};

TEST_F(ReportCommandTest, ARealSearchHasAPageWithEveryTrial) {
  work.Succeed({"auto", "deepspeed.yaml", "--max-trials", "4", "--confirm", "1", "--out", "out"});
  const Finished report = work.Succeed({"report"});
  EXPECT_EQ(report.out, "dsat-report-1.html\n");
  const Json made = Json::parse(work.Dsat({"report", "1", "--out", "page.html", "--json"}).out);
  EXPECT_EQ(made["file"], std::filesystem::canonical(work.Path("page.html")).string());
  EXPECT_EQ(made["bytes"], std::filesystem::file_size(work.Path("page.html")));

  if (!HasPython()) GTEST_SKIP() << "no Python reads the page; set DSAT_TEST_PYTHON";
  const Json page = ReadPage(work.Path("dsat-report-1.html"));
  ASSERT_TRUE(page.is_object());
  const Json shown = Json::parse(work.Dsat({"show", "1", "--json"}).out);
  EXPECT_EQ(page["rows"].size(), shown["trials"].size());
  EXPECT_EQ(made["trials"], shown["trials"].size());
  EXPECT_EQ(Json::parse(page["pre"][1].get<std::string>()),
            ReadJsonFile(work.Path("out/ds_config.json")));
  EXPECT_EQ(page["pre"][0], ReadFile(work.Path("out/command.txt"))
                                .substr(0, ReadFile(work.Path("out/command.txt")).find('\n')));
}

TEST_F(ReportCommandTest, WhatCannotBeWrittenIsRefusedByName) {
  Create();
  std::filesystem::create_directory(work.Path("folder"));
  work.ExpectRefused({"report", "1", "--out", "folder"}, "--out: folder is no file");
  work.ExpectRefused({"report", "1", "--out", "nowhere/page.html"}, "nowhere/page.html");
  work.ExpectRefused({"report", "1", "--out", "/proc/page.html"}, "/proc/page.html");
  work.ExpectRefused({"report", "1", "--out", "/dev/null"}, "--out: /dev/null is no file");
  const std::string before = ReadFile(work.Path("dsat.db"));
  work.ExpectRefused({"report", "1", "--out", "./dsat.db"},
                     "./dsat.db is a file, and not a page that dsat has written");
  EXPECT_EQ(ReadFile(work.Path("dsat.db")), before);
  work.ExpectRefused({"report", "1", "--out", "deepspeed.yaml"},
                     "deepspeed.yaml is a file, and not a page that dsat");
  work.ExpectRefused({"report", "7"}, "7");
  Store::Open(work.Path("empty.db"), Store::Mode::kCreate);
  work.ExpectRefused({"report", "--db", "empty.db"}, "empty.db: there is no experiment yet");
  for (const auto& entry : std::filesystem::directory_iterator(work.Path("")))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("html")));
}

TEST_F(ReportCommandTest, ASearchThatRunsAndOneThatWasKilledHavePages) {
  const pid_t search = StartSearch("40");
  ASSERT_TRUE(work.WaitUntilSaid("search.err", "as submitted"));
  work.Succeed({"report", "--out", "running.html"});
  const std::string running = ReadFile(work.Path("running.html"));
  EXPECT_NE(running.find("class=\"state active\""), std::string::npos);
  kill(search, SIGKILL);
  WaitFor(search);
  std::string killed;
  // A process that the search was just starting may hold its lock for an instant longer.
  for (int i = 0; i < 20 && killed.find("class=\"state interrupted\"") == killed.npos; ++i) {
    work.Succeed({"report", "--out", "killed.html"});
    killed = ReadFile(work.Path("killed.html"));
  }
  for (const char* part :
       {"class=\"state interrupted\"", "the search has not ended", "\"trial-1\""})
    EXPECT_NE(killed.find(part), std::string::npos) << part;
}

TEST_F(ReportCommandTest, APageThatIsWatchedRefreshesItselfUntilTheSearchEnds) {
  const pid_t search = StartSearch("12");
  ASSERT_TRUE(work.WaitUntilSaid("search.err", "as submitted"));
  const pid_t watch = work.StartDsat({"report", "--watch", "--out", "page.html"}, "watch");
  EXPECT_TRUE(work.WaitUntilSaid("page.html", "http-equiv=\"refresh\""));
  WaitFor(search);
  EXPECT_EQ(WaitFor(watch), 0);
  const std::string page = ReadFile(work.Path("page.html"));
  EXPECT_EQ(page.find("http-equiv=\"refresh\""), std::string::npos);
  EXPECT_NE(page.find("class=\"state completed\""), std::string::npos);
  EXPECT_EQ(ReadFile(work.Path("watch.out")), "page.html\n");
}

TEST_F(ReportCommandTest, APageThatIsNotWatchedAnyMoreDoesNotRefreshItself) {
  const pid_t search = StartSearch("40");
  ASSERT_TRUE(work.WaitUntilSaid("search.err", "as submitted"));
  const pid_t watch = work.StartDsat({"report", "--watch", "--out", "page.html"}, "watch");
  EXPECT_TRUE(work.WaitUntilSaid("page.html", "http-equiv=\"refresh\""));
  kill(watch, SIGINT);
  EXPECT_EQ(WaitFor(watch), 130);
  const std::string page = ReadFile(work.Path("page.html"));
  EXPECT_EQ(page.find("http-equiv=\"refresh\""), std::string::npos);
  EXPECT_NE(page.find("class=\"state active\""), std::string::npos);
  kill(search, SIGTERM);
  EXPECT_EQ(WaitFor(search), 130);
}

TEST_F(ReportCommandTest, TwoExperimentsAreComparedOnOnePage) {
  for (const char* size : {"1", "4"}) {
    std::string config = kDsConfig;
    config.replace(config.find("\": 1,") + 3, 1, size);
    work.Write("ds_config.json", config);
    work.Succeed({"random", "deepspeed.yaml", "--max-trials", "3", "--confirm", "2"});
  }
  const Finished report = work.Succeed({"report", "1", "2"});
  EXPECT_EQ(report.out, "dsat-report-1-2.html\n");
  const std::string page = ReadFile(work.Path("dsat-report-1-2.html"));
  for (const char* part :
       {"The pick of experiment 2 is ", " times as fast as that of experiment 1",
        "<th scope=\"col\">experiment 1</th><th scope=\"col\">experiment 2</th>",
        "<th scope=\"row\">train_micro_batch_size_per_gpu</th><td>1</td><td>4</td>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("<img"), std::string::npos);
  if (HasPython()) {
    EXPECT_TRUE(ReadPage(work.Path("dsat-report-1-2.html")).is_object());
  }
  EXPECT_EQ(Json::parse(work.Dsat({"report", "1", "2", "--json"}).out)["compared_with"], 2);
  work.ExpectRefused({"report", "1", "7"}, "7");
}

TEST_F(ReportCommandTest, ALogThatDoesNotReplayHasAPageWithoutAnAnswer) {
  {
    Store store = Store::Open(work.Path("old.db"), Store::Mode::kCreate);
    store.CreateExperiment(SampleSpec());
    store.Append(1, 0, std::array{AskedEvent(SampleTrial(0))});  // No profiling trial.
  }
  work.Succeed({"report", "1", "--db", "old.db", "--out", "old.html"});
  const std::string page = ReadFile(work.Path("old.html"));
  for (const char* part : {"There is no answer", "trial 0 does not replay as it was recorded",
                           "start a new experiment", "id=\"trial-0\""})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

// A page in a browser without network: its document after scripts have run.
class BrowserTest : public ReportCommandTest {
 protected:
  void SetUp() override {
    ReportCommandTest::SetUp();
    if (std::system("command -v chromium >/dev/null") != 0)
      GTEST_SKIP() << "there is no chromium: apt-get install chromium";
    work.Write("empty.html", "<p>here</p>");
    if (!Browse("empty.html", "--dump-dom")) GTEST_SKIP() << "chromium does not start here";
    Create();
    for (int i = 0; i < 4; ++i) {
      const Json asked = Json::parse(work.Dsat({"ask", "1", "--json"}).out)["trial"];
      if (asked["kind"] == "profile") {
        work.Write("profile.json", R"({"num_params": 1000000, "trainable_num_params": 1000000,
            "activation_bytes_per_sample": 1000000, "device_memory_bytes": 64000000})");
        work.Write("metrics.json", "{\"FLOPS_per_gpu\": 1e9}");
        work.Succeed({"tell", "1", "--trial", "0", "--metrics", "metrics.json", "--profile",
                      "profile.json"});
      } else {
        work.Write("metrics.json", Json{{"FLOPS_per_gpu", 1e9 * ((i * 7) % 5)}}.dump());
        const std::string id = asked["id"].dump();
        work.Dsat(i == 3 ? std::vector<std::string>{"tell", "1", "--trial", id, "--failed", "lost"}
                         : std::vector<std::string>{"tell", "1", "--trial", id, "--metrics",
                                                    "metrics.json"});
      }
    }
    work.Succeed({"report", "1", "--out", "page.html"});
    page = ReadFile(work.Path("page.html"));
  }

  // `options` are passed to the browser. Its output goes to `name`.out; false if it fails.
  bool Browse(const std::string& name, const std::string& options) const {
    const std::string command = fmt::format(
        "cd {} && HOME=$PWD timeout 120 chromium --headless --no-sandbox --disable-gpu "
        "--disable-dev-shm-usage --user-data-dir=$PWD/profile {} file://$PWD/{} >{}.out "
        "2>/dev/null",
        ShellWord(work.Path("")), options, name, name);
    return std::system(command.c_str()) == 0;
  }
  std::string DocumentOf(const std::string& name, const std::string& options) const {
    EXPECT_TRUE(Browse(name, "--dump-dom " + options));
    return ReadFile(work.Path(name + ".out"));
  }

  // The title of a page after its scripts have run.
  std::string TitleIn(const std::string& name, const std::string& options) const {
    const std::string document = DocumentOf(name, options);
    const size_t begin = document.find("<title>") + 7;
    return document.substr(begin, document.find("</title>") - begin);
  }

  // The page with a script of ours, which its policy would not let run.
  void WriteWithScript(const std::string& name, const std::string& script) const {
    std::string text = page;
    const std::string policy = "http-equiv=\"Content-Security-Policy\"";
    text.replace(text.find(policy), policy.size(), "name=\"policy\"");
    text.insert(text.rfind("</body>"), "<script>" + script + "</script>");
    work.Write(name, text);
  }

  std::string page;
};

TEST_F(BrowserTest, TheSortingScriptRunsAndNothingElseDoes) {
  const std::string document = DocumentOf("page.html", "");
  EXPECT_NE(document.find("<button type=\"button\">"), std::string::npos);
  EXPECT_EQ(document.find("<img"), std::string::npos);
  std::string attacked = page;
  attacked.insert(attacked.rfind("</body>"), "<script>document.title = 'attacked'</script>");
  work.Write("attacked.html", attacked);
  EXPECT_NE(TitleIn("attacked.html", ""), "attacked");
}

TEST_F(BrowserTest, AClickSortsByTheNumbersOfAColumn) {
  WriteWithScript("sorted.html",
                  "const table = document.getElementById('all-trials');"
                  "const column = Array.from(table.tHead.rows[0].cells)"
                  ".findIndex((cell) => cell.dataset.metric === 'FLOPS_per_gpu');"
                  "const click = () => table.tHead.rows[0].cells[column].firstChild.click();"
                  "const order = () => Array.from(table.tBodies[0].rows)"
                  ".map((row) => row.cells[column].dataset.value || 'none').join(' ');"
                  "click(); const up = order(); click();"
                  "document.title = up + ' / ' + order();");
  EXPECT_EQ(TitleIn("sorted.html", ""),
            "1000000000 2000000000 4000000000 none / 4000000000 2000000000 1000000000 none");
}

// In frames, because a browser's own window may not be as narrow as a telephone.
TEST_F(BrowserTest, ThePageFitsWideAndNarrowWindows) {
  for (const int width : {320, 400, 1280}) {
    work.Write("frame.html",
               fmt::format("<iframe id=\"frame\" width=\"{}\" height=\"900\" src=\"page.html\">"
                           "</iframe><script>frame.onload = () => document.title = "
                           "frame.contentDocument.documentElement.scrollWidth;</script>",
                           width));
    EXPECT_EQ(TitleIn("frame.html", "--allow-file-access-from-files --hide-scrollbars"),
              std::to_string(width));
    const std::string image = fmt::format("page-{}.png", width);
    EXPECT_TRUE(
        Browse("page.html", fmt::format("--window-size={},2000 --screenshot={}", width, image)));
    EXPECT_GT(std::filesystem::file_size(work.Path(image)), 10'000U);
  }
}

}  // namespace
}  // namespace dsat
