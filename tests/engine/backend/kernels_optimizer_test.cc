// Optimizer kernels against formulas in double.
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "tests/engine/backend/kernels_testing.h"

namespace dsat::engine {
namespace {

// More than one block of work, and a ragged end.
constexpr int64_t kManyElems = 70001;
constexpr int kSteps = 5;
const StepScale kHalf = {.grad_scale = 0.5F};

// The state of one optimizer, in double.
struct Reference {
  Doubles param, m, v;
};

// The operands that an optimizer kernel reads and writes, and the reference beside them.
class Operands {
 public:
  Operands(DType dtype, unsigned seed)
      : dtype_(dtype),
        random_(seed),
        master_(random_.Normal(DType::kF32, kManyElems)),
        param_(TestTensor::Poisoned(dtype, kManyElems)),
        m_(TestTensor::Zeros(DType::kF32, kManyElems)),
        v_(TestTensor::Zeros(DType::kF32, kManyElems)),
        reference_{master_.Values(), m_.Values(), v_.Values()} {}

  // New random gradients, and views for the arguments that all optimizers share.
  template <typename Args>
  void Next(Args& args) {
    grad_ = random_.Normal(dtype_, kManyElems);
    // An f32 model has no second copy of its parameters.
    args.param = dtype_ == DType::kF32 ? master_.get() : param_.get();
    args.master = master_.get();
    args.grad = grad_.get();
  }
  Doubles grad() const { return grad_.Values(); }
  Tensor m() { return m_.get(); }
  Tensor v() { return v_.get(); }
  Reference& reference() { return reference_; }

  // Sums and differences of numbers around `magnitude` in the parameters.
  void ExpectAsReference(double magnitude = 1) const {
    ExpectClose(master_, reference_.param, DType::kF32, magnitude);
    ExpectClose(m_, reference_.m, DType::kF32);
    ExpectClose(v_, reference_.v, DType::kF32);
    if (dtype_ == DType::kF32) return;
    EXPECT_EQ(param_.bytes(), TestTensor(dtype_, master_.Values()).bytes());
  }

 private:
  DType dtype_;
  Random random_;
  TestTensor master_, param_, m_, v_, grad_;
  Reference reference_;
};

template <typename Args>
double ScaleOf(const Args& args) {
  return args.scale == nullptr ? 1 : args.scale->grad_scale;
}

void MomentsReference(Reference& state, size_t i, double g, const AdamArgs& a) {
  state.m[i] = a.beta1 * state.m[i] + (1 - double{a.beta1}) * g;
  state.v[i] = a.beta2 * state.v[i] + (1 - double{a.beta2}) * g * g;
}

// One step of Adam or AdamW as its papers write it.
void AdamReference(Reference& state, const Doubles& grad, const AdamArgs& a) {
  for (size_t i = 0; i < grad.size(); ++i) {
    double g = grad[i] * ScaleOf(a);
    if (!a.decoupled_weight_decay) g += a.weight_decay * state.param[i];
    MomentsReference(state, i, g, a);
    double m = state.m[i], v = state.v[i];
    if (a.bias_correction) {
      m /= 1 - std::pow(double{a.beta1}, static_cast<double>(a.step));
      v /= 1 - std::pow(double{a.beta2}, static_cast<double>(a.step));
    }
    if (a.decoupled_weight_decay) state.param[i] -= a.lr * a.weight_decay * state.param[i];
    state.param[i] -= a.lr * m / (std::sqrt(v) + a.eps);
  }
}

TEST_P(KernelsTest, AdamFollowsTheFormulaForFiveSteps) {
  for (int flags = 0; flags < 8; ++flags) {
    Operands operands(dtype(), 11);
    AdamArgs args{.m = operands.m(), .v = operands.v(), .lr = 0.01F};
    args.weight_decay = (flags & 4) != 0 ? 0.1F : 0.0F;
    args.decoupled_weight_decay = (flags & 1) != 0;
    args.bias_correction = (flags & 2) != 0;
    args.scale = &kHalf;
    for (args.step = 1; args.step <= kSteps; ++args.step) {
      operands.Next(args);
      AdamReference(operands.reference(), operands.grad(), args);
      kernels().Run(op::AdamStep{args});
    }
    // Where gradient and L2 term cancel, the direction of a step (lr long) hangs on rounding.
    operands.ExpectAsReference(args.decoupled_weight_decay ? 1 : 20);
  }
}

// bf16 parameters without an f32 copy. Every step begins at what the last one has rounded.
void ExpectBf16AdamAsFormula(DType moment_dtype, bool has_copy, bool decoupled_weight_decay) {
  const auto kernels = MakeTestKernels();
  Random random(20);
  TestTensor param = random.Normal(DType::kBF16, kManyElems), copy = param;
  TestTensor m = TestTensor::Zeros(moment_dtype, kManyElems), v = m;
  AdamArgs args{.param = param.get(), .master = has_copy ? copy.get() : param.get()};
  args.m = m.get();
  args.v = v.get();
  args.lr = 0.05F;
  args.weight_decay = 0.1F;
  args.decoupled_weight_decay = decoupled_weight_decay;
  args.eps = 1e-3F;  // Where gradient and L2 term cancel, the direction does not hang on rounding.
  args.scale = &kHalf;
  for (args.step = 1; args.step <= kSteps; ++args.step) {
    TestTensor grad = random.Normal(DType::kBF16, kManyElems);
    args.grad = grad.get();
    Reference expected = {param.Values(), m.Values(), v.Values()};
    AdamReference(expected, grad.Values(), args);
    kernels->Run(op::AdamStep{args});
    ExpectClose(param, expected.param, DType::kBF16);
    ExpectClose(m, expected.m, moment_dtype);
    ExpectClose(v, expected.v, moment_dtype);
    EXPECT_EQ(has_copy, copy.bytes() == param.bytes());
  }
}

TEST(Bf16AdamTest, StateInBf16FollowsTheFormulaRoundedOnce) {
  for (const DType moment_dtype : {DType::kF32, DType::kBF16}) {
    for (const bool has_copy : {false, true}) {
      for (const bool decoupled_weight_decay : {false, true})
        ExpectBf16AdamAsFormula(moment_dtype, has_copy, decoupled_weight_decay);
    }
  }
}

double FloatOf(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(StochasticRoundingTest, OfAllRandomBitsTheMeanIsTheNumber) {
  for (const float x : {1.0F, 1.003F, -1.003F, 0.99999F, 3e38F, -1e-39F, 0.0F, 1e-30F}) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t below = bits & 0xFFFF0000U, above = below + 0x10000U;
    double sum = 0;
    for (uint32_t random = 0; random < 0x10000U; ++random) {
      const uint32_t rounded = RoundAtRandom(bits, random);
      EXPECT_TRUE(rounded == below || (rounded == above && bits != below)) << x;
      sum += FloatOf(rounded);
    }
    EXPECT_DOUBLE_EQ(sum / 0x10000, x);
  }
}

TEST(StochasticRoundingTest, InfinityAndNaNStayWhatTheyAre) {
  for (const uint32_t random : {0U, 0x8000U, 0xFFFFU}) {
    for (const uint32_t infinity : {0x7F800000U, 0xFF800000U})
      EXPECT_EQ(RoundAtRandom(infinity, random), infinity);
    for (const uint32_t nan : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF80FFFFU, 0xFFFFFFFFU})
      EXPECT_TRUE(std::isnan(FloatOf(RoundAtRandom(nan, random)))) << nan;
  }
  EXPECT_EQ(RoundAtRandom(0x7F7FFFFFU, 0), 0x7F7F0000U);
  EXPECT_EQ(RoundAtRandom(0x7F7FFFFFU, 0xFFFFU), 0x7F800000U);
}

// Steps of Adam that are `lr` long, of parameters that begin at `begin`.
class EqualSteps {
 public:
  EqualSteps(const Doubles& begin, float lr)
      : param_(DType::kBF16, begin), master_(DType::kF32, begin) {
    args_ = {.param = param_.get(), .grad = grad_.get(), .m = m_.get(), .v = v_.get(), .lr = lr};
  }
  AdamArgs& WithMaster() {
    args_.master = master_.get();
    return args_;
  }
  AdamArgs& WithoutMaster() {
    args_.master = param_.get();
    return args_;
  }
  const TestTensor& param() const { return param_; }
  const TestTensor& master() const { return master_; }

 private:
  TestTensor param_, master_;
  TestTensor grad_{DType::kBF16, Doubles(kManyElems, 1.0)};
  TestTensor m_ = TestTensor::Zeros(DType::kF32, kManyElems), v_ = m_;
  AdamArgs args_;
};

double Mean(const Doubles& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(StochasticRoundingTest, EachParameterIsANeighborOfItsMasterCopyAndTheMeanIsTheirs) {
  const auto kernels = MakeTestKernels();
  EqualSteps steps(Random(21).Normal(kManyElems), 0.01F);
  AdamArgs& args = steps.WithMaster();
  args.rounding = RoundingBits{.key = 7};
  kernels->Run(op::AdamStep{args});
  const Doubles master = steps.master().Values(), param = steps.param().Values();
  Doubles errors;  // In last places.
  for (size_t i = 0; i < master.size(); ++i) {
    const double place = std::ldexp(1.0, std::ilogb(master[i]) - 7);
    errors.push_back((param[i] - master[i]) / place);
    ASSERT_LT(std::abs(errors.back()), 1) << i;
  }
  // One standard deviation of an error is sqrt(1 / 6) of a place.
  EXPECT_LT(std::abs(Mean(errors)), 4 * std::sqrt(1.0 / 6 / kManyElems));
}

TEST(StochasticRoundingTest, StepsThatRoundingToNearestLosesAreMadeOnAverage) {
  const auto kernels = MakeTestKernels();
  constexpr int kNumSteps = 64;
  constexpr float kStep = 1.0F / 4096;  // A sixteenth of the last place below 1.
  for (const bool at_random : {false, true}) {
    EqualSteps steps(Doubles(kManyElems, 1.0), kStep);
    AdamArgs& args = steps.WithoutMaster();
    for (args.step = 1; args.step <= kNumSteps; ++args.step) {
      if (at_random) args.rounding = RoundingBits{.key = static_cast<uint64_t>(args.step) << 20};
      kernels->Run(op::AdamStep{args});
    }
    const double expected = at_random ? 1 - kNumSteps * kStep : 1;
    EXPECT_NEAR(Mean(steps.param().Values()), expected, 1.5e-4);
  }
}

TEST(StochasticRoundingTest, TheBitsAreThoseOfTheElementWhereverTheTensorIsCut) {
  const auto kernels = MakeTestKernels();
  const Doubles begin = Random(22).Normal(kManyElems);
  EqualSteps whole(begin, 0.01F), cut(begin, 0.01F);
  constexpr int64_t kFar = int64_t{3} << 32;
  AdamArgs args = whole.WithoutMaster();
  args.rounding = RoundingBits{.key = 9, .begin = kFar};
  kernels->Run(op::AdamStep{args});
  const AdamArgs all = cut.WithoutMaster();
  for (int64_t from = 0; from < kManyElems;) {
    const int64_t count = std::min<int64_t>(kManyElems - from, from == 0 ? 17 : 30011);
    args = all;
    for (Tensor* t : {&args.param, &args.master, &args.grad, &args.m, &args.v})
      *t = t->Slice(from, count);
    args.rounding = RoundingBits{.key = 9, .begin = kFar + from};
    kernels->Run(op::AdamStep{args});
    from += count;
  }
  EXPECT_EQ(cut.param().bytes(), whole.param().bytes());
}

// Where nothing but rounding is done: the same bits as the CPU's.
TEST(StochasticRoundingTest, DevicesAgreeOnTheBits) {
  const auto kernels = MakeTestKernels(), cpu = MakeCpuKernels(2);
  const Doubles begin = Random(23).Normal(kManyElems);
  EqualSteps here(begin, 0), there(begin, 0);
  for (EqualSteps* steps : {&here, &there}) {
    AdamArgs& args = steps->WithMaster();
    args.rounding = RoundingBits{.key = 0x123456789ABCDEF0U, .begin = 5};
    (steps == &here ? kernels : cpu)->Run(op::AdamStep{args});
  }
  EXPECT_EQ(here.param().bytes(), there.param().bytes());
  EXPECT_NE(here.param().bytes(), TestTensor(DType::kBF16, begin).bytes());
}

void SgdReference(Reference& state, const Doubles& grad, const op::SgdStep& a) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * ScaleOf(a) + a.weight_decay * state.param[i];
    double direction = g;
    if (a.momentum != 0) {
      state.m[i] = a.step == 1 ? g : a.momentum * state.m[i] + (1 - double{a.dampening}) * g;
      direction = a.nesterov ? g + a.momentum * state.m[i] : state.m[i];
    }
    state.param[i] -= a.lr * direction;
  }
}

TEST_P(KernelsTest, SgdFollowsTheFormulaForFiveSteps) {
  struct Case {
    float momentum, dampening;
    bool nesterov;
  };
  for (const Case& c :
       {Case{0, 0, false}, Case{0.9F, 0, false}, Case{0.9F, 0.3F, false}, Case{0.9F, 0, true}}) {
    Operands operands(dtype(), 12);
    op::SgdStep args{.lr = 0.1F, .weight_decay = 0.01F};
    args.momentum = c.momentum;
    args.dampening = c.dampening;
    args.nesterov = c.nesterov;
    args.scale = &kHalf;
    if (c.momentum != 0) args.momentum_buffer = operands.m();
    for (args.step = 1; args.step <= kSteps; ++args.step) {
      operands.Next(args);
      SgdReference(operands.reference(), operands.grad(), args);
      kernels().Run(args);
    }
    operands.ExpectAsReference(4);
  }
}

TEST_P(KernelsTest, AdagradFollowsTheFormulaForFiveSteps) {
  Operands operands(dtype(), 13);
  op::AdagradStep args{.sum = operands.v(), .lr = 0.1F, .weight_decay = 0.1F, .scale = &kHalf};
  Reference& reference = operands.reference();
  for (int step = 0; step < kSteps; ++step) {
    operands.Next(args);
    const Doubles grad = operands.grad();
    for (size_t i = 0; i < grad.size(); ++i) {
      const double g = grad[i] * 0.5 + double{args.weight_decay} * reference.param[i];
      reference.v[i] += g * g;
      reference.param[i] -= args.lr * g / (std::sqrt(reference.v[i]) + args.eps);
    }
    kernels().Run(args);
  }
  // Where gradient and L2 term cancel in the first step, its direction hangs on rounding.
  operands.ExpectAsReference(20);
}

TEST_P(KernelsTest, LionFollowsTheFormulaForFiveSteps) {
  Operands operands(dtype(), 14);
  op::LionStep args{.m = operands.m(), .lr = 0.01F, .weight_decay = 0.1F, .scale = &kHalf};
  Reference& reference = operands.reference();
  for (int step = 0; step < kSteps; ++step) {
    operands.Next(args);
    const Doubles grad = operands.grad();
    for (size_t i = 0; i < grad.size(); ++i) {
      const double g = grad[i] * 0.5;
      const double c = args.beta1 * reference.m[i] + (1 - double{args.beta1}) * g;
      const double sign = c > 0 ? 1 : -1;
      reference.param[i] -= args.lr * (sign + double{args.weight_decay} * reference.param[i]);
      reference.m[i] = args.beta2 * reference.m[i] + (1 - double{args.beta2}) * g;
    }
    kernels().Run(args);
  }
  operands.ExpectAsReference();
}

TEST_P(KernelsTest, LionRestsWhereTheMomentumIsZero) {
  TestTensor param(dtype(), {2.0}), master(DType::kF32, {2.0});
  TestTensor grad = TestTensor::Zeros(dtype(), 1), m = TestTensor::Zeros(DType::kF32, 1);
  kernels().Run(op::LionStep{
      .param = param.get(), .master = master.get(), .grad = grad.get(), .m = m.get(), .lr = 0.5F});
  EXPECT_EQ(master.Values()[0], 2.0);
  EXPECT_EQ(param.Values()[0], 2.0);
}

double LambDirection(const Reference& state, size_t i, const AdamArgs& a) {
  return state.m[i] / (std::sqrt(state.v[i]) + a.eps) + a.weight_decay * state.param[i];
}

// FusedLamb of one whole parameter; gives its norms' squares before the step.
LambSums LambReference(Reference& state, const Doubles& grad, const AdamArgs& a) {
  LambSums sums;
  for (size_t i = 0; i < grad.size(); ++i) {
    MomentsReference(state, i, grad[i] * ScaleOf(a), a);
    sums.param += state.param[i] * state.param[i];
    sums.direction += std::pow(LambDirection(state, i, a), 2);
  }
  double step_size = a.lr;
  if (a.bias_correction) {
    const auto step = static_cast<double>(a.step);
    step_size *=
        std::sqrt(1 - std::pow(double{a.beta2}, step)) / (1 - std::pow(double{a.beta1}, step));
  }
  const double ratio = std::sqrt(sums.param / sums.direction);
  for (size_t i = 0; i < grad.size(); ++i)
    state.param[i] -= step_size * ratio * LambDirection(state, i, a);
  return sums;
}

TEST_P(KernelsTest, LambFollowsTheFormulaForFiveSteps) {
  for (const bool bias_correction : {true, false}) {
    Operands operands(dtype(), 15);
    AdamArgs args{.m = operands.m(), .v = operands.v(), .lr = 0.01F, .weight_decay = 0.1F};
    args.bias_correction = bias_correction;
    args.scale = &kHalf;
    for (args.step = 1; args.step <= kSteps; ++args.step) {
      operands.Next(args);
      const LambSums expected = LambReference(operands.reference(), operands.grad(), args);
      LambSums sums;
      kernels().Run(op::LambMoments{args, &sums});
      EXPECT_NEAR(sums.param / expected.param, 1, 1e-6);
      EXPECT_NEAR(sums.direction / expected.direction, 1, 1e-5);
      kernels().Run(
          op::LambApply{args, static_cast<float>(std::sqrt(sums.param / sums.direction))});
    }
    operands.ExpectAsReference(4);
  }
}

TEST_P(KernelsTest, LambMomentsLeaveTheParameters) {
  Operands operands(dtype(), 16);
  AdamArgs args{.m = operands.m(), .v = operands.v(), .lr = 1};
  operands.Next(args);
  const Doubles grad = operands.grad();
  for (size_t i = 0; i < grad.size(); ++i)
    MomentsReference(operands.reference(), i, grad[i], args);
  LambSums sums;
  kernels().Run(op::LambMoments{args, &sums});
  kernels().Run(op::LambApply{args, 0});  // Writes what it read.
  operands.ExpectAsReference();
}

// 1-bit Adam after its freeze: the momentum moves, the variance does not.
TEST_P(KernelsTest, FrozenAdamFollowsTheFormulaForFiveSteps) {
  Operands operands(dtype(), 17);
  AdamArgs args{.m = operands.m(), .v = operands.v(), .lr = 0.01F, .weight_decay = 0.1F};
  args.scale = &kHalf;
  constexpr int64_t kStill = 21;  // Elements that have had no gradient.
  kernels().Run(op::Fill{operands.v(), 0.25F});
  kernels().Run(op::Fill{operands.v().Slice(0, kStill), 0});
  Reference& reference = operands.reference();
  reference.v.assign(kManyElems, 0.25);
  std::fill_n(reference.v.begin(), kStill, 0.0);
  for (args.step = 1; args.step <= kSteps; ++args.step) {
    operands.Next(args);
    const Doubles grad = operands.grad();
    for (size_t i = 0; i < grad.size(); ++i) {
      reference.m[i] =
          args.beta1 * reference.m[i] + (1 - double{args.beta1}) * grad[i] * kHalf.grad_scale;
      reference.param[i] -= args.lr * (reference.v[i] > 0 ? LambDirection(reference, i, args)
                                                          : args.weight_decay * reference.param[i]);
    }
    kernels().Run(op::MomentumStep{args});
    kernels().Run(op::FrozenAdamStep{args});
  }
  operands.ExpectAsReference();
}

constexpr int64_t kEights = kManyElems / 8 * 8;

TEST_P(KernelsTest, CompressedSignsAndWhatTheyMiss) {
  Random random(18);
  Doubles values = random.Normal(kEights);
  values[5] = 0;
  TestTensor in(DType::kF32, values);
  TestTensor error = random.Normal(DType::kF32, kEights, 0.1);
  Doubles errors = error.Values();
  errors[5] = 0;
  error = TestTensor(DType::kF32, errors);
  std::vector<uint8_t> signs(kEights / 8, 0xFF);
  float scale = 0;
  kernels().Run(op::CompressSigns{error.get(), signs.data(), &scale, in.get()});

  values = in.Values();
  const Doubles sums = Zip(values, errors, std::plus<>());
  const double expected_scale = std::sqrt(Dot(sums, sums) / static_cast<double>(kEights));
  EXPECT_NEAR(scale, expected_scale, 1e-6);
  Doubles missed;
  for (size_t i = 0; i < sums.size(); ++i) {
    const bool positive = ((signs[i / 8] >> (i % 8)) & 1) != 0;
    ASSERT_EQ(positive, sums[i] >= 0) << i;
    missed.push_back(sums[i] - (positive ? expected_scale : -expected_scale));
  }
  ExpectClose(error, missed, DType::kF32);
}

TEST_P(KernelsTest, DecompressedSignsAreWrittenOrAdded) {
  const uint8_t signs[] = {0b10100101, 0b00000000};
  TestTensor out = TestTensor::Poisoned(DType::kF32, 16);
  const float scale = 0.25F;
  kernels().Run(op::DecompressSigns{out.get(), signs, &scale, 2, false});
  Doubles expected = {0.5, -0.5, 0.5, -0.5, -0.5, 0.5, -0.5, 0.5};
  expected.resize(16, -0.5);
  EXPECT_EQ(out.Values(), expected);
  kernels().Run(op::DecompressSigns{out.get(), signs, &scale, 8, true});
  for (double& x : expected)
    x *= 5;
  EXPECT_EQ(out.Values(), expected);
}

// Error feedback: what was not sent is sent later. The sum of all messages and the last error is
// the sum of all values.
TEST_P(KernelsTest, NothingIsLostOverManyCompressions) {
  constexpr int64_t kN = 64;
  Random random(19);
  TestTensor error = TestTensor::Zeros(DType::kF32, kN);
  TestTensor received = TestTensor::Zeros(DType::kF32, kN);
  Doubles sent(kN, 0.0);
  uint8_t signs[kN / 8];
  for (int step = 0; step < 50; ++step) {
    TestTensor values = random.Normal(DType::kF32, kN);
    const Doubles numbers = values.Values();
    for (size_t i = 0; i < sent.size(); ++i)
      sent[i] += numbers[i];
    float scale = 0;
    kernels().Run(op::CompressSigns{error.get(), signs, &scale, values.get()});
    kernels().Run(op::DecompressSigns{received.get(), signs, &scale, 1, true});
  }
  kernels().Run(op::Accumulate{received.get(), error.get()});
  ExpectClose(received, sent, DType::kF32, 20);
}

}  // namespace
}  // namespace dsat::engine
