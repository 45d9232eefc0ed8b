// Distills a GPT of two layers into one of a single layer: two engines, and a loss of one's own.
#include <cmath>
#include <cstdio>
#include <exception>
#include <span>

#include "engine/model/models.h"
#include "engine/runtime/initialize.h"
#include "engine/runtime/rank_environment.h"

using namespace dsat::engine;

constexpr size_t kVocab = 256;
constexpr float kTemperature = 2;

Model Gpt(int num_layers, int width) {
  dsat::Json model = {{"type", "gpt2"}, {"n_head", 4}, {"n_positions", 64}, {"vocab_size", kVocab}};
  model["n_layer"] = num_layers;
  model["n_embd"] = width;
  return MakeModel(model, "model");
}

// The softmax of logits / kTemperature, in place.
void Soften(std::span<float> logits) {
  float sum = 0;
  for (float& x : logits)
    sum += x = std::exp((x - 50) / kTemperature);  // No logit here is far above 50.
  for (float& x : logits)
    x /= sum;
}

// The mean over the rows of KL(teacher || student) of the softened probabilities, times
// kTemperature^2 (Hinton et al., https://arxiv.org/abs/1503.02531). `student` becomes its gradient.
double SoftLoss(std::span<float> teacher, std::span<float> student) {
  const float num_rows = static_cast<float>(student.size() / kVocab);
  double loss = 0;
  for (size_t row = 0; row < student.size(); row += kVocab) {
    const auto p = teacher.subspan(row, kVocab), q = student.subspan(row, kVocab);
    Soften(p);
    Soften(q);
    for (size_t c = 0; c < kVocab; ++c) {
      loss += p[c] * std::log((p[c] + 1e-9F) / (q[c] + 1e-9F));
      q[c] = kTemperature * (q[c] - p[c]) / num_rows;
    }
  }
  return kTemperature * kTemperature * loss / num_rows;
}

int main() {
  const dsat::Json text = {
      {"type", "text"}, {"path", "/usr/share/common-licenses"}, {"validation", {{"split", 0.05}}}};
  const char* config = R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}, "zero_optimization": {"stage": 2}})";
  const RankEnvironment environment = ReadRankEnvironment();
  const auto world = JoinGroup(environment);
  const auto start = [&](int num_layers, int width) {
    return Initialize(*world, {.model = Gpt(num_layers, width),
                               .config = {dsat::Json::parse(config)},
                               .device = MakeCpuDevice(environment.num_threads),
                               .dataset = OpenDataset(text, "", 42, "text")});
  };
  const auto teaching = start(2, 64), learning = start(1, 32);
  Engine &teacher = teaching->engine(), &student = learning->engine();
  while (teacher.num_steps() < 200)
    teacher.TrainBatch();
  while (student.num_steps() < 201) {
    const Batch& batch = student.NextBatch();
    std::vector<float> wanted = teacher.Logits(batch), logits = student.ForwardLogits(batch);
    const double loss = SoftLoss(wanted, logits);
    student.Backward(logits, loss);
    const std::optional<StepResult> step = student.Step();  // Every second micro-batch.
    if (step && environment.rank == 0 && student.num_steps() % 100 == 1)
      std::printf("step %3ld  soft loss %.4f\n", student.num_steps(), step->loss);
  }
  const auto validation = OpenValidationDataset(text, "", 42, "text");
  const double known = teacher.Evaluate(*validation, 4), learned = student.Evaluate(*validation, 4);
  if (environment.rank != 0) return 0;
  std::printf("validation: teacher %.4f, student %.4f\n", known, learned);
}
