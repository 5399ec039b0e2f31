#include "common/model/rope.h"

#include <cmath>
#include <numbers>

namespace baton::model {
namespace {

// Long wavelengths are divided by the factor, short ones kept, those between blended linearly.
double ScaleLlama3(double inverse, const checkpoint::RopeScaling& scaling) {
  const double original = scaling.original_max_position_embeddings;
  const double factor = scaling.factor;
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  const double wavelength = 2.0 * std::numbers::pi / inverse;
  if (wavelength < original / high) {
    return inverse;
  }
  if (wavelength > original / low) {
    return inverse / factor;
  }
  const double smooth = (original / wavelength - low) / (high - low);
  return (1.0 - smooth) * inverse / factor + smooth * inverse;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const checkpoint::ModelConfig& config) {
  const int32_t half_dim = config.head_dim / 2;
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<size_t>(half_dim));
  for (int32_t i = 0; i < half_dim; ++i) {
    const double inverse = std::pow(config.rope_theta, -2.0 * i / config.head_dim);
    const bool scaled = config.rope_scaling.factor != 1.0f;
    frequencies.push_back(
        static_cast<float>(scaled ? ScaleLlama3(inverse, config.rope_scaling) : inverse));
  }
  return frequencies;
}

}  // namespace baton::model
