// Tests which slots trials get, and on which hosts they can run.
#include "searcher/hosts/slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/num_cores.h"
#include "tests/base/error_code.h"
#include "tests/searcher/hosts/host_with.h"

namespace dsat {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string ErrorText(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts) {
  return RefusalOf([&] { CheckHosts(spec, hosts); });
}

TEST(FindSlotsTest, ATrialThatFitsOnOneHostRunsOnOne) {
  const std::vector<LaunchHost> hosts = {HostWith("a", {0, 1, 2}), HostWith("b", {0, 1})};
  EXPECT_THAT(FindSlots(hosts, {}, 2), ElementsAre(Slot{0, 0}, Slot{0, 1}));
  EXPECT_THAT(FindSlots(hosts, {{0, 1}}, 2), ElementsAre(Slot{0, 0}, Slot{0, 2}));
  EXPECT_THAT(FindSlots(hosts, {{0, 0}, {0, 1}}, 2), ElementsAre(Slot{1, 0}, Slot{1, 1}));
  // One slot is free on each host, which does not replace two slots of one host.
  EXPECT_THAT(FindSlots(hosts, {{0, 0}, {0, 1}, {1, 0}}, 2), IsEmpty());
}

TEST(FindSlotsTest, AnotherTrialTakesWholeHostsInTheirOrder) {
  const std::vector<LaunchHost> hosts = {HostWith("a", {0, 1}), HostWith("b", {2, 3}),
                                         HostWith("c", {0}), HostWith("d", {0, 1})};
  EXPECT_THAT(FindSlots(hosts, {}, 3), ElementsAre(Slot{0, 0}, Slot{0, 1}, Slot{1, 2}));
  const std::set<Slot> used = {{0, 0}, {0, 1}, {1, 2}};
  EXPECT_THAT(FindSlots(hosts, used, 3), ElementsAre(Slot{2, 0}, Slot{3, 0}, Slot{3, 1}));
  EXPECT_THAT(FindSlots(hosts, used, 4), IsEmpty());
  EXPECT_THAT(FindSlots(hosts, {}, 8), IsEmpty());
}

TEST(NumGpusInTest, InstancesCountAndWhatIsNoDeviceEndsTheList) {
  EXPECT_EQ(NumGpusIn("MIG-a,MIG-b", 1), 2);
  EXPECT_EQ(NumGpusIn("GPU-a,MIG-b,MIG-c", 8), 3);
  EXPECT_EQ(NumGpusIn("0, 1,2,3", 2), 2);
  EXPECT_EQ(NumGpusIn("-1", 2), 0);
  EXPECT_EQ(NumGpusIn("1,-1,0", 2), 1);
  EXPECT_EQ(NumGpusIn("MIG-a", 0), 0);
}

TEST(CheckHostsTest, DevicesWithNamesAreRefusedWhereOnlyNumbersWork) {
  const Visible visible("MIG-bb,MIG-cc");
  ExperimentSpec spec;
  spec.slots_per_trial = 2;
  spec.device_memory_bytes = 1 << 30;
  spec.entrypoint = {"deepspeed", "train.py"};
  EXPECT_THAT(ErrorText(spec, {}), HasSubstr("CUDA_VISIBLE_DEVICES has MIG-bb, and the entry"));
  const LaunchHost elsewhere = HostWith("a", {0, 1});
  EXPECT_EQ(ErrorText(spec, {elsewhere}), "") << "its devices have numbers";
  spec.entrypoint = {"torchrun", "train.py"};
  EXPECT_THAT(ErrorText(spec, {}), HasSubstr("expected 1 with the MIG devices"));
  spec.slots_per_trial = 1;
  EXPECT_EQ(ErrorText(spec, {}), "");
  spec.device_memory_bytes = 0;
  EXPECT_THAT(ErrorText(spec, {}), HasSubstr("expected the memory of one MIG device"));
}

TEST(CheckHostsTest, RefusesWhatCannotRunThereAndSaysWhatToDo) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 3;
  const std::vector<LaunchHost> hosts = {HostWith("a", {0, 1}), HostWith("b", {0})};
  EXPECT_EQ(ErrorText(spec, hosts), "");
  spec.slots_per_trial = 4;
  EXPECT_THAT(ErrorText(spec, hosts), HasSubstr("slots_per_trial: 4; the hosts have fewer"));

  spec.slots_per_trial = 3;
  spec.entrypoint = {"accelerate", "launch", "train.py", "--deepspeed_config", "a.json"};
  spec.device_memory_bytes = 1 << 30;
  EXPECT_THAT(ErrorText(spec, hosts), HasSubstr("3 slots are not spread evenly over 2 hosts"));
  spec.entrypoint[0] = "deepspeed";
  EXPECT_EQ(ErrorText(spec, hosts), "");
  spec.slots_per_trial = 2;
  EXPECT_EQ(ErrorText(spec, hosts), "");
  spec.entrypoint = {"sh", "-c", "RUN='deepspeed train.py' && $RUN"};
  EXPECT_THAT(ErrorText(spec, hosts), HasSubstr("`deepspeed` in $RUN cannot be told of several"));
  spec.entrypoint = {"sh", "-c", "RUN='torchrun train.py' && $RUN"};
  EXPECT_EQ(ErrorText(spec, hosts), "");
  spec.device_memory_bytes = 0;
  EXPECT_THAT(ErrorText(spec, hosts), HasSubstr("resources.device_memory: not given"));
}

TEST(CheckHostsTest, AHostfileOfThisMachineAloneLimitsItsRanks) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 2;
  LaunchHost here{.slots = {1}, .is_listed = true};
  EXPECT_THAT(ErrorText(spec, {here}), HasSubstr("slots_per_trial: 2; the hosts have fewer slots"));
  here.slots = {1, 3};
  EXPECT_EQ(ErrorText(spec, {here}), "");
  spec.entrypoint = {"python", "train.py"};
  EXPECT_EQ(ErrorText(spec, {here}), "") << "nvidia-smi tells the memory of a device here";
}

TEST(CheckHostsTest, ASlotWithoutAVisibleDeviceIsRefused) {
  ExperimentSpec spec;
  spec.entrypoint = {"python", "train.py"};
  spec.device_memory_bytes = 1 << 30;
  LaunchHost host = HostWith("a", {0, 2});
  host.devices = "4,5";
  EXPECT_EQ(ErrorText(spec, {host}), "") << "Slurm's slots need not be devices";
  host.is_listed = true;
  EXPECT_THAT(ErrorText(spec, {host}), HasSubstr("the hostfile: slot 2 of a is no device, because "
                                                 "CUDA_VISIBLE_DEVICES lists 2 there"));
  host.devices = "4,5,6";
  EXPECT_EQ(ErrorText(spec, {host}), "");
  host.devices = "4,5";
  spec.entrypoint = {"builtin"};
  EXPECT_EQ(ErrorText(spec, {host}), "") << "its ranks are on the CPU";
}

TEST(CheckHostsTest, GpusOfThisMachineThatAreNotSelectedAreNotUsed) {
  if (NumVisibleGpus() == 0) GTEST_SKIP() << "no GPU";
  const Visible visible("0");
  ExperimentSpec spec;
  spec.entrypoint = {"python", "train.py"};
  LaunchHost here{.slots = {1}, .is_listed = true};
  EXPECT_THAT(ErrorText(spec, {here}), HasSubstr("slot 1 of localhost is no device"));
  here.slots = {0};
  EXPECT_EQ(ErrorText(spec, {here}), "");
  const Visible more("0,1");
  here.slots = {1};
  EXPECT_EQ(ErrorText(spec, {here}), "");
  spec.entrypoint = {"deepspeed", "--num-gpus=1", "train.py"};
  EXPECT_THAT(ErrorText(spec, {here}), HasSubstr("--num_gpus of `deepspeed` selects devices"));
  spec.entrypoint = {"deepspeed", "train.py"};
  EXPECT_EQ(ErrorText(spec, {here}), "");
}

TEST(ThisMachineTest, SlotsAreWhatTrialsRunOn) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  EXPECT_EQ(ThisMachine(spec, 3).slots, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(static_cast<int64_t>(ThisMachine(spec, 0).slots.size()), NumCores());
  spec.device = "cuda";
  EXPECT_EQ(static_cast<int64_t>(ThisMachine(spec, 0).slots.size()),
            std::max<int64_t>(1, NumVisibleGpus()));
}

TEST(CheckHostsTest, ThisMachineMayLackSlotsBecauseRanksCanShareIt) {
  ExperimentSpec spec;
  spec.entrypoint = {"builtin"};
  spec.slots_per_trial = 256;
  EXPECT_EQ(ErrorText(spec, {ThisMachine(spec, 1)}), "");
  spec.slots_per_trial = 257;
  EXPECT_THAT(
      ErrorText(spec, {}),
      HasSubstr("slots_per_trial: 257 would start 257 ranks on one host; expected at most"));
  std::vector<int64_t> many(300);
  EXPECT_THAT(ErrorText(spec, {HostWith("a", many)}), HasSubstr("257 ranks on one host"));
}

}  // namespace
}  // namespace dsat
