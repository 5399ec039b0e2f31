// Comparison with golden outputs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/safetensors_file.h"

namespace baton::golden {

// What every golden must meet with --compute fp32: max |dlogit| <= this x max |logit|.
inline constexpr double kMaxRelativeError = 1e-3;

// max |actual - expected| / max |expected|. Fails the running test when sizes differ.
double RelativeError(std::span<const float> actual, std::span<const float> expected);

// Expects RelativeError within kMaxRelativeError and prints "golden <what>: <error>".
void ExpectMatchesGolden(std::span<const float> actual,
                         std::span<const float> expected,
                         const std::string& what);

// A whole golden tensor; fails the running test when it is missing.
std::vector<float> ReadFloats(const checkpoint::SafetensorsFile& file, const std::string& name);
std::vector<int32_t> ReadInts(const checkpoint::SafetensorsFile& file, const std::string& name);

}  // namespace baton::golden
