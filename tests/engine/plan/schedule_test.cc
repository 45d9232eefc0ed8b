// Tests what a pipeline stage computes, in which order.
#include "engine/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace dsat::engine {
namespace {

std::string Text(const std::vector<Instruction>& instructions) {
  std::string text;
  for (const Instruction& i : instructions)
    text += (text.empty() ? "" : " ") + ToString(i);
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

ScheduleOptions Stage(int stage, int num_stages, int64_t num_micro_batches,
                      int units_per_stage = 1) {
  ScheduleOptions options;
  options.num_units = num_stages * units_per_stage;
  options.first_unit = stage * units_per_stage;
  options.end_unit = options.first_unit + units_per_stage;
  options.num_stages = num_stages;
  options.stage = stage;
  options.num_micro_batches = num_micro_batches;
  return options;
}

TEST(ScheduleTest, OneForwardOneBackwardOfTwoStages) {
  EXPECT_EQ(Text(Schedule(Stage(0, 2, 3))),
            "load(0) forward(0.0) send_output(0.0) load(1) forward(1.0) "
            "send_output_receive_grad(1.0,0.0) load(0) backward(0.0) load(2) forward(2.0) "
            "send_output_receive_grad(2.0,1.0) load(1) backward(1.0) "
            "load(2) receive_grad(2.0) backward(2.0)");
  EXPECT_EQ(Text(Schedule(Stage(1, 2, 3))),
            "load(0) receive_input(0.1) forward(0.1) backward(0.1) "
            "send_grad_receive_input(0.1,1.1) load(1) forward(1.1) backward(1.1) "
            "send_grad_receive_input(1.1,2.1) load(2) forward(2.1) backward(2.1) send_grad(2.1)");
}

// The stage after has its last input before it sends a gradient.
TEST(ScheduleTest, WithFewMicroBatchesOnlyLaterStagesHaveMessagesThatCross) {
  EXPECT_EQ(Text(Schedule(Stage(0, 3, 2))),
            "load(0) forward(0.0) send_output(0.0) load(1) forward(1.0) send_output(1.0) "
            "load(0) receive_grad(0.0) backward(0.0) load(1) receive_grad(1.0) backward(1.0)");
  EXPECT_EQ(Text(Schedule(Stage(1, 3, 2))),
            "load(0) receive_input(0.1) forward(0.1) send_output(0.1) "
            "load(1) receive_input(1.1) forward(1.1) send_output_receive_grad(1.1,0.1) "
            "load(0) backward(0.1) send_grad(0.1) load(1) receive_grad(1.1) backward(1.1) "
            "send_grad(1.1)");
}

// The micro-batches that a stage waits to send or to receive, -1 for none.
struct Message {
  int offset = 0;
  int sent = -1;
  int received = -1;
};

Message MessageOf(const Instruction& c) {
  switch (c.op) {
    case Op::kSendOutput:
    case Op::kSendGrad:
      return {StageOffset(c.op), c.micro_batch, -1};
    case Op::kReceiveInput:
    case Op::kReceiveGrad:
      return {StageOffset(c.op), -1, c.micro_batch};
    default:
      return {StageOffset(c.op), c.sent_micro_batch, c.micro_batch};
  }
}

// Simulates a pipeline stage.
class PaperStage {
 public:
  explicit PaperStage(const ScheduleOptions& options)
      : options_(options), list_(Schedule(options)) {}

  // Computes up to the next message.
  void Run() {
    const int first_backward = std::max(options_.first_unit, options_.first_trained);
    const bool has_backward = options_.backward && first_backward < options_.end_unit;
    for (; !AtEnd() && StageOffset(list_[next_].op) == 0; ++next_) {
      const Instruction& c = list_[next_];
      if (c.op == Op::kForward && has_backward) in_flight_.insert(c.micro_batch);
      if (c.op != Op::kBackward) continue;
      EXPECT_EQ(in_flight_.count(c.micro_batch), 1u);
      if (c.unit == first_backward) in_flight_.erase(c.micro_batch);
    }
    EXPECT_LE(std::ssize(in_flight_), NumInFlight(options_));
  }
  void EndMessage() { ++next_; }
  bool AtEnd() const { return next_ == list_.size(); }
  // REQUIRES: not at the end.
  Message Awaits() const { return MessageOf(list_[next_]); }
  std::string AwaitsText() const { return AtEnd() ? "" : Text({list_[next_]}); }

 private:
  const ScheduleOptions options_;
  const std::vector<Instruction> list_;
  size_t next_ = 0;
  std::set<int> in_flight_;
};

// Whether the messages that two stages wait for are the same ones.
bool Meet(const PaperStage& before, const PaperStage& after) {
  if (before.AtEnd() || after.AtEnd()) return false;
  const Message up = before.Awaits();
  const Message down = after.Awaits();
  return up.offset == 1 && down.offset == -1 && up.sent == down.received &&
         up.received == down.sent;
}

// A message moves when both of its stages have come to it, those that cross in one instruction of
// each: nothing is sent before it is received, and nobody waits for ever.
void ExpectPipelineEnds(const std::vector<ScheduleOptions>& options) {
  std::vector<PaperStage> stages(options.begin(), options.end());
  for (PaperStage& stage : stages)
    stage.Run();
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s + 1 < stages.size(); ++s) {
      if (!Meet(stages[s], stages[s + 1])) continue;
      for (PaperStage* stage : {&stages[s], &stages[s + 1]}) {
        stage->EndMessage();
        stage->Run();
      }
      moved = true;
    }
  }
  for (size_t s = 0; s < stages.size(); ++s)
    EXPECT_EQ(stages[s].AwaitsText(), "") << "stage " << s;
}

TEST(ScheduleTest, EveryPipelineEndsThoughNothingIsSentBeforeItIsReceived) {
  for (const int num_stages : {1, 2, 3, 4, 5, 7}) {
    for (const int64_t num_micro_batches : {1, 2, 3, 4, 5, 6, 7, 8, 12}) {
      for (const int checkpoint_interval : {0, 1, 2}) {
        for (int first_trained = -1; first_trained < 2 * num_stages; ++first_trained) {
          SCOPED_TRACE(testing::Message() << num_stages << " stages, " << num_micro_batches
                                          << " micro-batches, trained from " << first_trained
                                          << ", interval " << checkpoint_interval);
          std::vector<ScheduleOptions> stages;
          for (int s = 0; s < num_stages; ++s) {
            stages.push_back(Stage(s, num_stages, num_micro_batches, 2));
            stages.back().backward = first_trained >= 0;
            stages.back().first_trained = std::max(first_trained, 0);
            stages.back().checkpoint_interval = checkpoint_interval;
            stages.back().checkpoints_on_host = checkpoint_interval == 2;
          }
          ExpectPipelineEnds(stages);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsat::engine
