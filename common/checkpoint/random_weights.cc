#include "common/checkpoint/random_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

namespace baton::checkpoint {
namespace {

constexpr float kDefaultDeviation = 0.02f;
constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;
// The sum of four uniform 16-bit integers has mean 4 x 32767.5 and deviation
// sqrt(4 (65536^2 - 1) / 12); it is normal enough for weights and exact on every machine.
constexpr int32_t kSumMean = 131070;
constexpr double kSumDeviation = 37837.227;

// SplitMix64's output function: a bijection, so distinct counters give distinct words.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

bool IsNorm(std::string_view name) {
  return name.find("norm") != std::string_view::npos && name.ends_with(".weight");
}

float Deviation(std::string_view name, std::span<const int64_t> shape) {
  if (shape.size() == 2 && name.find(".layers.") != std::string_view::npos) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape[1])));
  }
  return kDefaultDeviation;
}

}  // namespace

void FillRandomTensor(uint64_t seed,
                      std::string_view name,
                      std::span<const int64_t> shape,
                      int64_t first,
                      std::span<float> out) {
  if (IsNorm(name)) {
    std::fill(out.begin(), out.end(), 1.0f);
    return;
  }
  const uint64_t key = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  const float scale = static_cast<float>(Deviation(name, shape) / kSumDeviation);
  uint64_t counter = key + kGoldenGamma * static_cast<uint64_t>(first);
  for (float& value : out) {
    counter += kGoldenGamma;
    const uint64_t word = Mix(counter);
    const int32_t sum = static_cast<int32_t>((word & 0xffff) + ((word >> 16) & 0xffff) +
                                             ((word >> 32) & 0xffff) + (word >> 48));
    value = static_cast<float>(sum - kSumMean) * scale;
  }
}

}  // namespace baton::checkpoint
