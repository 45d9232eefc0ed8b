// Runs dsat aio-bench on a real folder: its output, its refusals, and the files it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "base/files.h"
#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class AioBenchTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(work.Path("disk")); }

  // Small enough for a test: four settings of one block size.
  Finished Bench(std::vector<std::string> more) const {
    more.insert(more.begin(), {"aio-bench", "disk", "--size", "1MiB", "--block-sizes", "64KiB",
                               "--queue-depths", "4", "--intra-op-parallelism", "2"});
    return work.Succeed(more);
  }

  Workspace work;
};

TEST_F(AioBenchTest, PrintsATableAndABlockToPaste) {
  const Finished run = Bench({});
  EXPECT_EQ(CountLines(run.err), 4) << run.err;  // Progress: a line for each setting.
  EXPECT_THAT(run.out, AllOf(HasSubstr("block_size  queue_depth  intra_op_parallelism"),
                             HasSubstr("read GB/s  write GB/s  I/O")));
  const Json block = Json::parse(run.out.substr(run.out.find('{')));
  EXPECT_EQ(block.size(), 1u);
  EXPECT_EQ(block["aio"]["block_size"], 65'536);
  EXPECT_EQ(block["aio"]["queue_depth"], 4);
  EXPECT_EQ(block["aio"]["intra_op_parallelism"], 2);
  EXPECT_TRUE(block["aio"]["single_submit"].is_boolean());
  EXPECT_TRUE(block["aio"]["overlap_events"].is_boolean());
  EXPECT_TRUE(fs::is_empty(work.Path("disk")));
}

TEST_F(AioBenchTest, JsonHasEveryMeasurementBestFirst) {
  const Json json = Json::parse(Bench({"--json"}).out);
  EXPECT_EQ(json["bytes"], 1 << 20);
  ASSERT_EQ(json["results"].size(), 4u);
  EXPECT_EQ(json["results"][0]["aio"], json["best"]["aio"]);
  double last = 0;  // Seconds for a byte both ways: never less than in the row above.
  for (const Json& row : json["results"]) {
    const double seconds =
        1 / row["read_gb_per_s"].get<double>() + 1 / row["write_gb_per_s"].get<double>();
    EXPECT_GE(seconds, last);
    EXPECT_THAT(row["io"], testing::AnyOf("direct", "buffered"));
    last = seconds;
  }
}

TEST_F(AioBenchTest, RefusesWhatItCannotUseInOneLine) {
  work.ExpectRefused({"aio-bench", "nowhere"}, "scratch file in nowhere: ");
  work.ExpectRefused({"aio-bench", "nowhere"}, "No such file or directory");
  work.Write("file", "");
  work.ExpectRefused({"aio-bench", "file"}, "Not a directory");
  work.ExpectRefused({"aio-bench", "disk", "--size", "1000TiB"}, "No space left on device");
  work.ExpectRefused({"aio-bench", "disk", "--size", "much"}, "--size");
  work.ExpectRefused({"aio-bench", "disk", "--size", "0"},
                     "--size: 0; expected at least one byte and at most 1.0 PiB");
  work.ExpectRefused({"aio-bench", "disk", "--size", "9223372036854775806"}, "1.0 PiB");
  work.ExpectRefused({"aio-bench", "disk", "--block-sizes", "1MiB,1000"},
                     "/aio/block_size: 1000; expected a multiple of 4096");
  work.ExpectRefused({"aio-bench", "disk", "--queue-depths", "0"},
                     "/aio/queue_depth: 0; expected 1 to 256");
  EXPECT_TRUE(fs::is_empty(work.Path("disk")));
  // Not even root can write there.
  work.ExpectRefused({"aio-bench", "/proc/sys"}, "scratch file in /proc/sys: ");
}

TEST_F(AioBenchTest, LeavesNothingWhenInterrupted) {
  const pid_t pid = work.StartDsat({"aio-bench", "disk", "--size", "1MiB", "--repeats", "1000",
                                    "--queue-depths", "1,2,3,4,5,6,7,8"},
                                   "bench");
  EXPECT_TRUE(work.WaitUntilSaid("bench.err", "\n2/"));
  kill(pid, SIGINT);
  EXPECT_EQ(WaitFor(pid), 128 + SIGINT);
  EXPECT_TRUE(fs::is_empty(work.Path("disk")));
}

}  // namespace
}  // namespace dsat
