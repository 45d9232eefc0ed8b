// Compares how dsat and the real DeepSpeed read hostfiles and filters. Skipped where the Python of
// DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set) cannot import deepspeed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "searcher/hosts/hosts.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

constexpr int kNumCases = 2000;

// Hostfiles and filters with small mistakes here and there.
class RandomCases {
 public:
  Json Next() {
    const int num_hosts = Below(5);
    std::string hostfile = OneOf<std::string>({"", "# hosts\n", "\n"});
    for (int i = 0; i < num_hosts; ++i)
      hostfile += Line(OneIn(40) ? 0 : i);
    const int filter = Below(5);
    return {{"hostfile", hostfile},
            {"include", filter == 1 || filter == 2 ? Filter(num_hosts) : ""},
            {"exclude", filter == 3 ? Filter(num_hosts) : ""},
            {"num_nodes", filter == 4 ? Below(4) : 0},
            {"num_gpus", filter == 4 ? Below(3) : 0}};
  }

 private:
  int Below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  bool OneIn(int n) { return Below(n) == 0; }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[static_cast<size_t>(Below(static_cast<int>(values.size())))];
  }

  std::string Line(int host) {
    const std::string name = fmt::format("worker-{}", host);
    if (OneIn(40)) return name + OneOf<std::string>({"\n", " slots = 2\n", " slots=-1\n", " 2\n"});
    return fmt::format("{}{}{}slots={}{}\n", OneIn(8) ? "  " : "", name, OneIn(8) ? "\t " : " ",
                       1 + Below(4),
                       OneOf<std::string>({"", "", "", " max_slots=8", " # old", "foo", " \r"}));
  }

  std::string Filter(int num_hosts) {
    std::string filter;
    for (int i = 1 + Below(3); i > 0; --i) {
      filter +=
          fmt::format("worker-{}", OneIn(20) ? 9 : Below(num_hosts + (OneIn(10) ? 1 : 0) + 1));
      for (int slot = OneIn(2) ? 0 : 1 + Below(3), first = slot; slot > 0; --slot)
        filter += fmt::format("{}{}", slot == first ? ":" : ",", Below(OneIn(8) ? 5 : 2));
      if (OneIn(30)) filter += OneOf<std::string>({":", ",", "@", ":0-2", ":a", ":0:1"});
      if (i > 1) filter += "@";
    }
    return filter;
  }

  std::mt19937 random_{20240611};
};

// dsat's result for a case, in the format of deepspeed_hosts.py.
Json Ours(const Json& one, const Workspace& work) {
  work.Write("hosts", one["hostfile"]);
  try {
    Json result = Json::array();
    for (const Host& host :
         SelectHosts(ReadHostfile(work.Path("hosts")), {.include = one["include"],
                                                       .exclude = one["exclude"],
                                                       .num_nodes = one["num_nodes"],
                                                       .num_gpus = one["num_gpus"]})) {
      result.push_back({host.name, host.slots});
    }
    return result;
  } catch (const Error&) {
    return {};
  }
}

// DeepSpeed's result with the two refusals that it does not make: more hosts than there are, more
// slots than a host has.
Json WithOurRefusals(const Json& one, const Json& theirs, const Workspace& work) {
  if (theirs.is_null()) return theirs;
  if (theirs.size() < one["num_nodes"].get<size_t>()) return {};
  work.Write("hosts", one["hostfile"]);
  const std::vector<Host> hosts = ReadHostfile(work.Path("hosts"));
  for (size_t i = 0; i < theirs.size() && one["num_gpus"] > 0; ++i) {
    if (hosts[i].slots.size() < one["num_gpus"].get<size_t>()) return {};
  }
  return theirs;
}

TEST(DeepSpeedHostsTest, HostsAndSlotsAreThoseThatDeepSpeedComputes) {
  setenv("DS_ACCELERATOR", "cpu", 1);
  if (!HasPackage("deepspeed"))
    GTEST_SKIP() << "this Python has no deepspeed; scripts/setup --tests installs one that has it";

  RandomCases random;
  Json cases = Json::array();
  for (int i = 0; i < kNumCases; ++i)
    cases.push_back(random.Next());
  const Workspace work;
  work.Write("cases.json", cases.dump());
  const std::string script = DSAT_SOURCE_DIR "/tests/searcher/hosts/deepspeed_hosts.py";
  ASSERT_EQ(std::system(fmt::format("{} {} {} {} >/dev/null 2>&1", Python(), script,
                                    work.Path("cases.json"), work.Path("results.json"))
                            .c_str()),
            0);
  const Json results = ReadJsonFile(work.Path("results.json"));
  ASSERT_EQ(results.size(), cases.size());
  int num_refused = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json expected = WithOurRefusals(cases[i], results[i], work);
    EXPECT_EQ(Ours(cases[i], work), expected) << cases[i].dump(2);
    num_refused += expected.is_null() ? 1 : 0;
  }
  // The cases are of both kinds.
  EXPECT_GT(num_refused, kNumCases / 10);
  EXPECT_LT(num_refused, kNumCases * 2 / 3);
}

}  // namespace
}  // namespace dsat
