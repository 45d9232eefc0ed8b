// Tests the hostfile, and the hosts and slots that filters select.
#include "searcher/hosts/hosts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// "worker-0:0,1 worker-1:0" for people to compare.
std::string Text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", host.name, fmt::join(host.slots, ","));
  return text;
}

// The result of `call`, or the message of the error that it throws.
template <typename Call>
std::string ResultOf(const Call& call) {
  try {
    return Text(call());
  } catch (const Error& error) {
    return error.what();
  }
}

class HostfileTest : public testing::Test {
 protected:
  std::string Read(const std::string& content) const {
    work_.Write("hosts", content);
    return ResultOf([this] { return ReadHostfile(work_.Path("hosts")); });
  }
  // Refused in one line that names the file, with its line, and says all of `parts`.
  void ExpectRefused(const std::string& content, const std::string& place,
                     const std::vector<std::string>& parts) const {
    const std::string message = Read(content);
    EXPECT_THAT(message, HasSubstr(work_.Path("hosts") + place)) << content;
    EXPECT_THAT(message, Not(HasSubstr("\n"))) << content;
    for (const std::string& part : parts)
      EXPECT_THAT(message, HasSubstr(part)) << content;
  }

  Workspace work_;
};

TEST_F(HostfileTest, ALineIsAHostWithItsSlots) {
  struct Case {
    std::string content, hosts;
  };
  for (const Case& c : std::vector<Case>{
           {"worker-1 slots=2\n", "worker-1:0,1"},
           {"worker-1 slots=2", "worker-1:0,1"},
           {"b slots=1\na slots=3\n", "b:0 a:0,1,2"},
           {"\n# all of them\n   \n  a slots=1  \r\n\tb\t \tslots=1\n#c slots=1\n", "a:0 b:0"},
           {"a slots=2 max_slots=8\nb slots=1 # the old one\nc slots=2foo\n", "a:0,1 b:0 c:0,1"},
           {"a slots=007\n", "a:0,1,2,3,4,5,6"},
           {"a slots=0\nb slots=1\n", "a: b:0"},
           {"10.0.0.1 slots=1\nfe80::1 slots=1\nme@gpu_1.lan slots=1\n[::1] slots=1\n",
            "10.0.0.1:0 fe80::1:0 me@gpu_1.lan:0 [::1]:0"},
       }) {
    EXPECT_EQ(Read(c.content), c.hosts) << c.content;
  }
}

TEST_F(HostfileTest, ALineThatIsNoEntryIsRefusedWithItsNumber) {
  for (const char* line :
       {"worker-1", "worker-1 slots = 4", "worker-1 slots=", "worker-1 slots=-1", "worker-1 slot=4",
        "worker-1 4", "worker-1 slots=four", "slots=4", "worker-1 x slots=4", "worker-1, slots 4",
        "worker-1 slots=99999999999999999999", "worker-1 slots=4097"}) {
    ExpectRefused(fmt::format("# hosts\na slots=1\n{}\n", line),
                  ":3: ", {fmt::format("\"{}\"", line), "expected NAME slots=N"});
  }
  // Without this refusal only half of such a file would be read.
  ExpectRefused("a slots=1\rb slots=1\r", ":1: ", {"expected NAME slots=N"});
}

TEST_F(HostfileTest, AHostThatOccursTwiceIsRefusedWithBothLines) {
  ExpectRefused("a slots=1\nb slots=1\n\na slots=2\n", ":4: ", {"host a", "line 1"});
}

TEST_F(HostfileTest, AFileWithoutHostsIsRefused) {
  for (const char* content : {"", "\n\n", "# a slots=1\n"})
    ExpectRefused(content, ": no host", {"expected", "slots=4"});
}

TEST_F(HostfileTest, AFileThatIsNotThereIsRefused) {
  EXPECT_THAT(ResultOf([this] { return ReadHostfile(work_.Path("nowhere")); }),
              AllOf(HasSubstr(work_.Path("nowhere")), HasSubstr("No such file")));
}

TEST_F(HostfileTest, ANameThatSshOrAShellCouldMisreadIsRefused) {
  for (const char* name : {"-oProxyCommand=x",
                           "me@-oProxyCommand=x",
                           "a;b",
                           "a$b",
                           "$(id)",
                           "`id`",
                           "a|b",
                           "a&b",
                           "a>b",
                           "a*",
                           "a'b",
                           "a\"b",
                           "a\\b",
                           "a/b",
                           "a\x01"
                           "b",
                           "k\xc3\xb6ln",
                           "@a",
                           "me@",
                           "me@you@a",
                           "a,b",
                           "a%b"}) {
    ExpectRefused(fmt::format("{} slots=1\n", name), ":1: ", {"is no name of a host"});
  }
}

std::vector<Host> Pool() {
  return {{"worker-0", {0, 1, 2, 3}}, {"empty", {}}, {"worker-1", {0, 1}}, {"worker-10", {0}}};
}

std::string Select(const HostFilters& filters, const std::vector<Host>& hosts = Pool()) {
  return ResultOf([&] { return SelectHosts(hosts, filters); });
}

TEST(SelectHostsTest, WithoutFiltersAllSlotsAreLeft) {
  EXPECT_EQ(Select({}), "worker-0:0,1,2,3 worker-1:0,1 worker-10:0");
}

TEST(SelectHostsTest, IncludeTakesWhatItNames) {
  struct Case {
    std::string filter, hosts;
  };
  for (const Case& c : std::vector<Case>{
           {"worker-0", "worker-0:0,1,2,3"},
           {"worker-0:2", "worker-0:2"},
           {"worker-0:3,1,3", "worker-0:1,3"},
           {"worker-0@worker-1:1", "worker-0:0,1,2,3 worker-1:1"},
           {"worker-1:0@worker-0:0", "worker-0:0 worker-1:0"},
           {"worker-0:0@worker-0:2", "worker-0:0,2"},
           {"worker-1@worker-1:0", "worker-1:0"},
           {"empty@worker-10", "worker-10:0"},
       }) {
    EXPECT_EQ(Select({.include = c.filter}), c.hosts) << c.filter;
  }
}

TEST(SelectHostsTest, ExcludeLeavesTheRest) {
  struct Case {
    std::string filter, hosts;
  };
  for (const Case& c : std::vector<Case>{
           {"worker-0", "worker-1:0,1 worker-10:0"},
           {"worker-0:2@worker-1", "worker-0:0,1,3 worker-10:0"},
           {"worker-1:1,0@worker-10", "worker-0:0,1,2,3"},
           {"worker-0:0@worker-0:2", "worker-0:1,3 worker-1:0,1 worker-10:0"},
           {"empty", "worker-0:0,1,2,3 worker-1:0,1 worker-10:0"},
       }) {
    EXPECT_EQ(Select({.exclude = c.filter}), c.hosts) << c.filter;
  }
}

TEST(SelectHostsTest, NumbersTakeTheFirst) {
  EXPECT_EQ(Select({.num_nodes = 2}), "worker-0:0,1,2,3 worker-1:0,1");
  EXPECT_EQ(Select({.num_gpus = 1}), "worker-0:0 worker-1:0 worker-10:0");
  EXPECT_EQ(Select({.num_nodes = 2, .num_gpus = 2}), "worker-0:0,1 worker-1:0,1");
}

TEST(SelectHostsTest, NamesWithAtSignsAndColonsCanBeWritten) {
  const std::vector<Host> hosts = {
      {"me@a", {0, 1}}, {"a", {0, 1}}, {"fe80::1", {0, 1}}, {"fe80::1:2", {0, 1}}};
  EXPECT_EQ(Select({.include = "me@a:1"}, hosts), "me@a:1");
  EXPECT_EQ(Select({.include = "a:1@me@a"}, hosts), "me@a:0,1 a:1");
  EXPECT_EQ(Select({.include = "fe80::1:1@fe80::1:2"}, hosts), "fe80::1:1 fe80::1:2:0,1");
}

TEST(SelectHostsTest, WhatIsNotThereIsRefused) {
  struct Case {
    HostFilters filters;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {{.include = "worker-2"}, {"--include-hosts worker-2:", "no host \"worker-2\""}},
           {{.exclude = "worker-2:0"}, {"--exclude-hosts worker-2:0:", "no host \"worker-2\""}},
           {{.include = "wroker-0"}, {"no host \"wroker-0\"", "did you mean worker-0?"}},
           {{.include = "worker-0@"}, {"no host \"\""}},
           {{.include = ":0"}, {"no host \"\""}},
           {{.include = "worker-1:2"}, {"host worker-1 has no slot 2", "gives it 2"}},
           {{.exclude = "worker-1:0,7"}, {"host worker-1 has no slot 7"}},
           {{.include = "worker-1:99999999999999999999"}, {"has no slot 99999999999999999999"}},
           {{.include = "worker-0:0-2"}, {"\"0-2\" is no slot", "expected NAME[:SLOT"}},
           {{.include = "worker-0:MIG-1f"}, {"\"MIG-1f\" is no slot", "slot N is device N"}},
           {{.include = "worker-0:"}, {"\"\" is no slot"}},
           {{.include = "worker-0:0,"}, {"\"\" is no slot"}},
           {{.include = "worker-0:0:1"}, {"\"0:1\" is no slot"}},
           {{.include = "worker-0:-1"}, {"\"-1\" is no slot"}},
           {{.include = "worker-0,worker-1"}, {"no host \"worker-0,worker-1\""}},
           {{.include = "empty"}, {"--include-hosts empty: no slot is left"}},
           {{.exclude = "worker-0@worker-1@worker-10"}, {"no slot is left"}},
           {{.num_nodes = 4}, {"--num_nodes 4", "3 hosts"}},
           {{.num_gpus = 2}, {"--num_gpus 2", "worker-10 has 1 slot"}},
       }) {
    const std::string message = Select(c.filters);
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    for (const std::string& part : c.parts)
      EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(Select({}, {{"a", {}}}), "the hostfile: no slot is left");
}

TEST(SelectHostsTest, FiltersExcludeEachOther) {
  EXPECT_EQ(Select({.include = "worker-0", .exclude = "worker-1"}),
            "--include-hosts excludes --exclude-hosts");
  EXPECT_EQ(Select({.include = "worker-0", .num_nodes = 1}),
            "--num_nodes excludes --include-hosts");
  EXPECT_EQ(Select({.exclude = "worker-0", .num_gpus = 1}), "--num_gpus excludes --exclude-hosts");
}

}  // namespace
}  // namespace dsat
