// What a pipeline stage computes, in which order.
#include "engine/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace dsat::engine {
namespace {

std::string Text(const std::vector<Compute>& computes) {
  std::string text;
  for (const Compute& c : computes) {
    if (!text.empty()) text += " ";
    text += ToString(Instruction{c.op, c.phase, c.unit, c.micro_batch});
  }
  return text;
}

ScheduleOptions ThreeUnits(int64_t num_micro_batches = 1) {
  ScheduleOptions options;
  options.num_units = options.end_unit = 3;
  options.num_micro_batches = num_micro_batches;
  return options;
}

TEST(ScheduleTest, OneStageAccumulatesMicroBatchesOneAfterAnother) {
  EXPECT_EQ(Text(Schedule(ThreeUnits(2))),
            "load(0) forward(0.0) forward(0.1) forward(0.2) "
            "backward(0.2) backward(0.1) backward(0.0) "
            "load(1) forward(1.0) forward(1.1) forward(1.2) "
            "backward(1.2) backward(1.1) backward(1.0)");
}

TEST(ScheduleTest, CheckpointingEveryLayerKeepsItsInputAlone) {
  ScheduleOptions options = ThreeUnits();
  options.checkpoint_interval = 1;
  EXPECT_EQ(Text(Schedule(options)),
            "load(0) forward(0.0) drop_saved(0.0) forward(0.1) drop_saved(0.1) forward(0.2) "
            "backward(0.2) recompute(0.1) drop_input(0.2) backward(0.1) "
            "recompute(0.0) drop_input(0.1) backward(0.0)");
}

TEST(ScheduleTest, ASegmentIsComputedAgainFromItsFirstInput) {
  ScheduleOptions options = ThreeUnits();
  options.num_units = options.end_unit = 5;
  options.checkpoint_interval = 2;
  EXPECT_EQ(Text(Schedule(options)),
            "load(0) forward(0.0) drop_saved(0.0) forward(0.1) drop_saved(0.1) drop_input(0.1) "
            "forward(0.2) drop_saved(0.2) forward(0.3) drop_saved(0.3) drop_input(0.3) "
            "forward(0.4) backward(0.4) "
            "recompute(0.2) recompute(0.3) drop_input(0.4) backward(0.3) backward(0.2) "
            "recompute(0.0) recompute(0.1) drop_input(0.2) backward(0.1) backward(0.0)");
}

TEST(ScheduleTest, CheckpointsOnTheHostComeBackBeforeTheyAreNeeded) {
  ScheduleOptions options = ThreeUnits();
  options.checkpoint_interval = 1;
  options.checkpoints_on_host = true;
  EXPECT_EQ(Text(Schedule(options)),
            "load(0) forward(0.0) drop_saved(0.0) forward(0.1) drop_saved(0.1) store_input(0.1) "
            "forward(0.2) backward(0.2) fetch_input(0.1) recompute(0.1) drop_input(0.2) "
            "backward(0.1) recompute(0.0) drop_input(0.1) backward(0.0)");
}

TEST(ScheduleTest, UnitsBelowTheFirstTrainedOneKeepNothingAndHaveNoBackward) {
  ScheduleOptions options = ThreeUnits();
  options.first_trained = 1;
  EXPECT_EQ(Text(Schedule(options)),
            "load(0) forward(0.0) drop_saved(0.0) forward(0.1) forward(0.2) "
            "backward(0.2) backward(0.1) drop_grad(0.1)");
}

TEST(ScheduleTest, EvaluationKeepsNothing) {
  ScheduleOptions options = ThreeUnits();
  options.backward = false;
  EXPECT_EQ(Text(Schedule(options)),
            "load(0) forward(0.0) drop_saved(0.0) forward(0.1) drop_saved(0.1) drop_input(0.1) "
            "forward(0.2) drop_saved(0.2) drop_input(0.2)");
}

ScheduleOptions Stage(int stage, int num_stages, int64_t num_micro_batches) {
  ScheduleOptions options;
  options.num_units = num_stages;
  options.first_unit = options.stage = stage;
  options.end_unit = stage + 1;
  options.num_stages = num_stages;
  options.num_micro_batches = num_micro_batches;
  return options;
}

TEST(ScheduleTest, OneForwardOneBackwardOfTwoStages) {
  EXPECT_EQ(Text(Schedule(Stage(0, 2, 3))),
            "load(0) forward(0.0) send_output(0.0) load(1) forward(1.0) send_output(1.0) "
            "load(0) receive_grad(0.0) backward(0.0) load(2) forward(2.0) send_output(2.0) "
            "load(1) receive_grad(1.0) backward(1.0) load(2) receive_grad(2.0) backward(2.0)");
  EXPECT_EQ(Text(Schedule(Stage(1, 2, 3))),
            "load(0) receive_input(0.1) forward(0.1) backward(0.1) send_grad(0.1) "
            "load(1) receive_input(1.1) forward(1.1) backward(1.1) send_grad(1.1) "
            "load(2) receive_input(2.1) forward(2.1) backward(2.1) send_grad(2.1)");
}

// All stages run on paper: messages between two stages are in one order on both sides, a mailbox
// holds one message, and nobody waits for ever.
TEST(ScheduleTest, EveryPipelineEndsAndKeepsWithinItsMicroBatchesInFlight) {
  for (const int num_stages : {1, 2, 3, 5}) {
    for (const int64_t num_micro_batches : {1, 2, 4, 7}) {
      std::vector<std::vector<Compute>> lists;
      for (int s = 0; s < num_stages; ++s)
        lists.push_back(Schedule(Stage(s, num_stages, num_micro_batches)));
      std::vector<size_t> next(lists.size(), 0);
      std::vector<std::set<int>> in_flight(lists.size());
      std::map<std::pair<int, int>, int> mailbox;  // (from, to) -> micro-batch.
      for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < num_stages; ++s) {
          while (next[s] < lists[s].size()) {
            const Compute& c = lists[s][next[s]];
            const bool sends = c.op == Op::kSendOutput || c.op == Op::kSendGrad;
            const bool receives = c.op == Op::kReceiveInput || c.op == Op::kReceiveGrad;
            const bool upward = c.op == Op::kSendOutput || c.op == Op::kReceiveGrad;
            const int peer = upward ? s + 1 : s - 1;
            if (sends && !mailbox.emplace(std::pair(s, peer), c.micro_batch).second) break;
            if (receives) {
              const auto mail = mailbox.find({peer, s});
              if (mail == mailbox.end()) break;
              ASSERT_EQ(mail->second, c.micro_batch);
              mailbox.erase(mail);
            }
            if (c.op == Op::kForward) in_flight[s].insert(c.micro_batch);
            if (c.op == Op::kBackward) {
              ASSERT_EQ(in_flight[s].erase(c.micro_batch), 1u);
            }
            ASSERT_LE(std::ssize(in_flight[s]),
                      NumInFlight(Stage(s, num_stages, num_micro_batches)));
            ++next[s];
            moved = true;
          }
        }
      }
      for (int s = 0; s < num_stages; ++s)
        EXPECT_EQ(next[s], lists[s].size()) << "stage " << s << " of " << num_stages;
      EXPECT_TRUE(mailbox.empty());
    }
  }
}

}  // namespace
}  // namespace dsat::engine
