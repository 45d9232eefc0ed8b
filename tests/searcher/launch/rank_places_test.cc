// Tests the places of an attempt's ranks on its hosts, and their environment.
#include "searcher/launch/rank_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/searcher/hosts/host_with.h"

namespace dsat {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(PlaceRanksTest, WithoutSlotsAllRanksAreHere) {
  const std::vector<RankPlace> places = PlaceRanks({}, 2);
  EXPECT_EQ(places[1].local_rank, 1);
  EXPECT_EQ(places[1].local_size, 2);
  EXPECT_EQ(places[1].num_nodes, 1);
}

TEST(PlaceRanksTest, RanksCountOnTheirHostAndHostsInTheirOrder) {
  LaunchRequest request;
  request.slots = {{1, 0}, {1, 3}, {4, 0}};
  const std::vector<RankPlace> places = PlaceRanks(request, 3);
  EXPECT_EQ(places[0].host, 1);
  EXPECT_EQ(places[0].local_rank, 0);
  EXPECT_EQ(places[1].local_rank, 1);
  EXPECT_EQ(places[1].local_size, 2);
  EXPECT_EQ(places[1].node, 0);
  EXPECT_EQ(places[2].host, 4);
  EXPECT_EQ(places[2].local_rank, 0);
  EXPECT_EQ(places[2].local_size, 1);
  EXPECT_EQ(places[2].node, 1);
  EXPECT_EQ(places[2].num_nodes, 2);
}

TEST(DeviceEnvironmentTest, GivesEachHostItsOwnSlots) {
  LaunchRequest request;
  request.hosts = {HostWith("a", {0, 1}), HostWith("b", {2, 3})};
  request.slots = {{0, 0}, {0, 1}, {1, 3}};
  EXPECT_THAT(DeviceEnvironment(request, 0), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "0,1")));
  EXPECT_THAT(DeviceEnvironment(request, 1), ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "3")));
}

TEST(DeviceEnvironmentTest, SlotsAreIndicesOfDevicesWithNames) {
  const Visible visible("GPU-aa,MIG-bb,MIG-cc");
  LaunchRequest request;
  request.slots = {{0, 0}, {0, 2}};
  EXPECT_THAT(DeviceEnvironment(request, 0),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "GPU-aa,MIG-cc")));
  request.hosts = {HostWith("a", {0, 1, 2})};
  request.hosts[0].devices = "MIG-1,MIG-2,MIG-3";
  EXPECT_THAT(DeviceEnvironment(request, 0),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-3")));
}

TEST(FreePortTest, NoneIsGivenToAConnectionOrToAnotherAttempt) {
  std::set<int> ports;
  for (int i = 0; i < 100; ++i)
    ports.insert(FreePort());
  EXPECT_EQ(ports.size(), 100U);
  EXPECT_GE(*ports.begin(), 15000);
  EXPECT_LT(*ports.rbegin(), 32000) << "above are the ports that the kernel gives";
}

TEST(MasterEnvironmentTest, RanksMeetAtTheFirstHostOfTheAttempt) {
  LaunchRequest request;
  request.hosts = {HostWith("a", {0}), HostWith("b", {0}), HostWith("c", {0})};
  request.slots = {{1, 0}, {2, 0}};
  const auto meeting = MasterEnvironment(request);
  EXPECT_EQ(meeting.at("MASTER_ADDR"), "b.net");
  const int port = std::stoi(meeting.at("MASTER_PORT"));
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 32000);
  request.attempt = 1;
  EXPECT_NE(MasterEnvironment(request).at("MASTER_PORT"), meeting.at("MASTER_PORT"));
  request.slots = {{1, 0}, {1, 1}};
  EXPECT_EQ(MasterEnvironment(request).at("MASTER_ADDR"), "127.0.0.1") << "all are on one host";
}

}  // namespace
}  // namespace dsat
