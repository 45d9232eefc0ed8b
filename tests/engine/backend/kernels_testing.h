// Shared by the kernel tests: owned tensors, random numbers, comparisons and numeric derivatives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/core/half.h"
#include "engine/core/tensor.h"
#include "tests/engine/backend/test_device.h"

namespace dsat::engine {

using Doubles = std::vector<double>;

// bf16 by way of the definition: of the two neighbors, the nearer; the even one of a tie.
inline uint16_t RoundToBf16(double value) {
  const auto exact = static_cast<float>(value);
  const auto bits = std::bit_cast<uint32_t>(exact);
  if (std::isnan(exact)) return 0x7FC0;
  const uint32_t low = bits & 0xFFFFU;
  uint32_t high = bits >> 16;
  if (low > 0x8000U || (low == 0x8000U && (high & 1U) != 0)) ++high;
  return static_cast<uint16_t>(high);
}

// f16 by way of the definition: the nearest of the numbers that are whole multiples of their
// binade's last place, to the even multiple in a tie; from 65520 on infinity.
inline uint16_t RoundToF16(double value) {
  const double exact = static_cast<float>(value);
  const uint16_t sign = std::signbit(exact) ? 0x8000 : 0;
  if (std::isnan(exact)) return 0x7E00;
  if (std::abs(exact) >= 65520) return sign | 0x7C00;
  const int exponent = std::max(-14, exact == 0 ? -14 : std::ilogb(exact));
  const double last_place = std::ldexp(1.0, exponent - 10);
  const auto multiple = static_cast<int>(std::nearbyint(std::abs(exact) / last_place));
  // A multiple of 1024 or more has an implied leading bit; 2048 carries into the exponent.
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + multiple);
}

inline double FromF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Element i of numbers of `dtype`.
inline double LoadElem(const void* data, DType dtype, int64_t i) {
  const auto bytes = BytesPerElem(dtype);
  uint32_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + i * bytes, static_cast<size_t>(bytes));
  if (dtype == DType::kF16) return FromF16(static_cast<uint16_t>(bits));
  return std::bit_cast<float>(dtype == DType::kBF16 ? bits << 16 : bits);
}
// Rounds to `dtype`.
inline void StoreElem(void* data, DType dtype, int64_t i, double value) {
  const uint32_t bits = dtype == DType::kF32   ? std::bit_cast<uint32_t>(static_cast<float>(value))
                        : dtype == DType::kF16 ? RoundToF16(value)
                                               : RoundToBf16(value);
  const auto bytes = BytesPerElem(dtype);
  std::memcpy(static_cast<char*>(data) + i * bytes, &bits, static_cast<size_t>(bytes));
}

// A tensor that owns its elements.
class TestTensor {
 public:
  TestTensor() = default;
  // Rounds `values` to `dtype`.
  TestTensor(DType dtype, const Doubles& values)
      : dtype_(dtype), bytes_(values.size() * static_cast<size_t>(BytesPerElem(dtype))) {
    for (int64_t i = 0; i < std::ssize(values); ++i)
      StoreElem(bytes_.data(), dtype, i, values[static_cast<size_t>(i)]);
  }
  // Elements that must be written before they are read.
  static TestTensor Poisoned(DType dtype, int64_t num_elems) {
    return {dtype, Doubles(static_cast<size_t>(num_elems), std::nan(""))};
  }
  static TestTensor Zeros(DType dtype, int64_t num_elems) {
    return {dtype, Doubles(static_cast<size_t>(num_elems), 0.0)};
  }

  Tensor get() {
    return {bytes_.data(), static_cast<int64_t>(bytes_.size()) / BytesPerElem(dtype_), dtype_};
  }
  Doubles Values() const {
    Doubles values(bytes_.size() / static_cast<size_t>(BytesPerElem(dtype_)));
    for (int64_t i = 0; i < std::ssize(values); ++i)
      values[static_cast<size_t>(i)] = LoadElem(bytes_.data(), dtype_, i);
    return values;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  DType dtype_ = DType::kF32;
  std::vector<char> bytes_;
};

// Normal numbers, the same on every run.
class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  Doubles Normal(int64_t n, double scale = 1) {
    std::normal_distribution<double> distribution(0, scale);
    Doubles values(static_cast<size_t>(n));
    for (double& x : values)
      x = distribution(engine_);
    return values;
  }
  TestTensor Normal(DType dtype, int64_t n, double scale = 1) { return {dtype, Normal(n, scale)}; }
  std::vector<int32_t> Tokens(int64_t n, int32_t V) {
    std::uniform_int_distribution<int32_t> distribution(0, V - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& x : tokens)
      x = distribution(engine_);
    return tokens;
  }

 private:
  std::mt19937 engine_;
};

// Half a unit in the last place, and room for the sums before it.
inline double RelativeTolerance(DType dtype, double f32_tolerance) {
  if (dtype == DType::kF32) return f32_tolerance;
  return dtype == DType::kF16 ? 1.0 / 1024 : 1.0 / 256;
}

// Every element of `actual` is within the rounding of `dtype` of `expected`; sums of numbers around
// `magnitude` cancel no further than f32 allows.
inline void ExpectClose(const TestTensor& actual, const Doubles& expected, DType dtype,
                        double magnitude = 1, double f32_tolerance = 1e-5) {
  const Doubles values = actual.Values();
  ASSERT_EQ(values.size(), expected.size());
  const double relative = RelativeTolerance(dtype, f32_tolerance);
  for (size_t i = 0; i < values.size(); ++i) {
    const double tolerance = relative * std::abs(expected[i]) + f32_tolerance * magnitude;
    ASSERT_NEAR(values[i], expected[i], tolerance) << "at " << i;
  }
}

// d f / d x by central differences in double.
inline Doubles NumericGradient(Doubles x, const std::function<double(const Doubles&)>& f) {
  constexpr double kStep = 1e-5;
  Doubles gradient;
  for (double& value : x) {
    const double center = value;
    value = center + kStep;
    const double above = f(x);
    value = center - kStep;
    const double below = f(x);
    value = center;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

// ExpectClose to a numeric gradient.
inline void ExpectGradient(const TestTensor& actual, const Doubles& expected, DType dtype,
                           double magnitude = 1) {
  ExpectClose(actual, expected, dtype, magnitude, 2e-5);
}

// result[i] = fn(a[i], b[i]).
template <typename Fn>
Doubles Zip(const Doubles& a, const Doubles& b, const Fn& fn) {
  Doubles result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), fn);
  return result;
}

// With the tanh approximation.
inline double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double GeluSlope(double x) {
  return (Gelu(x + 1e-6) - Gelu(x - 1e-6)) / 2e-6;
}

inline double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

inline std::string DTypeName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : (dtype == DType::kF16 ? "F16" : "BF16");
}

// Runs a test in every dtype of a model, on three threads or what DSAT_TEST_DEVICE names.
class KernelsTest : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  Kernels& kernels() { return *kernels_; }

 private:
  std::unique_ptr<Kernels> kernels_ = MakeTestKernels();
};

}  // namespace dsat::engine
