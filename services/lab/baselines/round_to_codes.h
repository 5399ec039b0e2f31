// Uniform asymmetric quantization, as what its codes decode to.
#pragma once

#include <cstdint>

namespace baton::lab {

// Bytes of a group's scale and zero point, fp16 each.
inline constexpr int64_t kGroupMetadataBytes = 4;

// Replaces the group x[0], x[stride], ... of `count` values by what it decodes to after rounding to
// `bits`-bit codes: zero + scale * code, zero the smallest value and scale the range / (2^bits -
// 1), both rounded to fp16 before the codes are taken. A group of equal values becomes its zero.
void RoundToCodes(float* x, int64_t count, int64_t stride, int bits);

}  // namespace baton::lab
