#include "services/lab/baselines/round_to_codes.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/half.h"

namespace baton::lab {
namespace {

float RoundToF16(float x) { return kernels::F16ToF32(kernels::F32ToF16(x)); }

}  // namespace

void RoundToCodes(float* x, int64_t count, int64_t stride, int bits) {
  float low = x[0];
  float high = x[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, x[i * stride]);
    high = std::max(high, x[i * stride]);
  }
  const auto largest_code = static_cast<float>((1 << bits) - 1);
  const float zero = RoundToF16(low);
  const float scale = RoundToF16((high - zero) / largest_code);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    float& value = x[i * stride];
    const float code = std::nearbyint((value - zero) * inverse);
    value = zero + scale * std::clamp(code, 0.0f, largest_code);
  }
}

}  // namespace baton::lab
