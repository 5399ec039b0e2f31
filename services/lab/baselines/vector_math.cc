#include "services/lab/baselines/vector_math.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

namespace baton::lab {
namespace {

constexpr int64_t kLanes = 8;

float SumLanes(const float (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// std::max by value, which compilers turn into one instruction.
inline float Max(float a, float b) { return a < b ? b : a; }

// 2^x for -126 <= x <= 0: the whole part goes to the exponent, the rest through the polynomial of
// Cephes exp2f.
inline float Exp2(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves whole numbers
  const float whole = (x + kRound) - kRound;
  const float f = x - whole;
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
}

}  // namespace

float Dot(const float* a, const float* b, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  for (; i < count; ++i) {
    lanes[0] += a[i] * b[i];
  }
  return SumLanes(lanes);
}

float Largest(std::span<const float> x) {
  float lanes[kLanes];
  std::fill(std::begin(lanes), std::end(lanes), x[0]);
  const auto count = static_cast<int64_t>(x.size());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = Max(lanes[lane], x[static_cast<size_t>(i + lane)]);
    }
  }
  for (; i < count; ++i) {
    lanes[0] = Max(lanes[0], x[static_cast<size_t>(i)]);
  }
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

float Exp2FromMax(std::span<float> x) {
  const float largest = Largest(x);
  for (float& value : x) {
    value = Exp2(Max(value - largest, -126.0f));
  }
  float lanes[kLanes] = {};
  const auto count = static_cast<int64_t>(x.size());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += x[static_cast<size_t>(i + lane)];
    }
  }
  for (; i < count; ++i) {
    lanes[0] += x[static_cast<size_t>(i)];
  }
  return SumLanes(lanes);
}

std::vector<int32_t> TopIndices(std::span<const float> scores, int64_t count) {
  std::vector<int32_t> indices(scores.size());
  std::iota(indices.begin(), indices.end(), 0);
  if (count < static_cast<int64_t>(indices.size())) {
    std::nth_element(
        indices.begin(), indices.begin() + count, indices.end(), [&](int32_t a, int32_t b) {
          const float x = scores[static_cast<size_t>(a)];
          const float y = scores[static_cast<size_t>(b)];
          return x > y || (x == y && a < b);
        });
    indices.resize(static_cast<size_t>(count));
    std::sort(indices.begin(), indices.end());
  }
  return indices;
}

}  // namespace baton::lab
