#include "kernels/cpu/shadowkv_coding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cpu {
namespace {

// Most tokens of a chunk.
constexpr int64_t kMaxChunkTokens = 8;

void CodeCoefficients(const IsaKernels& isa,
                      const CodingGroup& group,
                      const CodingScratch& scratch) {
  ProjectKeys(isa,
              group.config,
              {.basis = group.basis,
               .rope = group.rope,
               .key_bias = group.key_bias,
               .position = group.position,
               .tokens = group.tokens},
              scratch,
              scratch.coefficients);
  StoreCoefficients(isa,
                    group.config,
                    {.tokens = group.layout.tokens, .token = group.token, .count = group.tokens},
                    scratch.coefficients,
                    group.section + group.layout.coefficients);
}

// mean = the chunk's mean key; keys are `width` apart.
void MeanKey(const ShadowKvConfig& config, const float* keys, float* mean) {
  const int64_t dim = config.head_dim;
  std::copy(keys, keys + dim, mean);
  for (int64_t t = 1; t < config.chunk_tokens; ++t) {
    const float* key = keys + t * config.width();
    for (int64_t i = 0; i < dim; ++i) {
      mean[i] += key[i];
    }
  }
  const auto count = static_cast<float>(config.chunk_tokens);
  for (int64_t i = 0; i < dim; ++i) {
    mean[i] /= count;
  }
}

// The smallest cosine between the mean and a key.
float SmallestCosine(const IsaKernels& isa,
                     const ShadowKvConfig& config,
                     const float* keys,
                     const float* mean) {
  const auto dots = [&](const float* x, const float* rows, int64_t count, float* out) {
    isa.dot_rows({.x = x,
                  .x_stride = config.head_dim,
                  .lines = 1,
                  .rows = reinterpret_cast<const std::byte*>(rows),
                  .row_stride = config.width(),
                  .count = count,
                  .bf16 = false,
                  .depth = config.head_dim,
                  .out = out,
                  .out_stride = count});
  };
  float with_mean[kMaxChunkTokens];
  float mean_energy;
  dots(mean, keys, config.chunk_tokens, with_mean);
  dots(mean, mean, 1, &mean_energy);
  float smallest = 2.0f;
  for (int64_t t = 0; t < config.chunk_tokens; ++t) {
    const float* key = keys + t * config.width();
    float energy;
    dots(key, key, 1, &energy);
    const float length = std::sqrt(energy) * std::sqrt(mean_energy);
    smallest = std::min(smallest, length > 0.0f ? with_mean[t] / length : 0.0f);
  }
  return smallest;
}

// Stores the landmark, and for bounds the largest distance of a key from it as stored. Overwrites
// mean.
void CodeLandmark(const IsaKernels& isa,
                  const CodingGroup& group,
                  const float* keys,
                  int64_t head,
                  int64_t chunk,
                  float* mean) {
  const ShadowKvConfig& config = group.config;
  const int64_t dim = config.head_dim;
  const int64_t vector = head * group.layout.chunks + chunk;
  std::byte* landmarks = group.section + group.layout.landmarks;
  if (config.quantized_landmarks()) {
    ShadowKvCodeVector(mean,
                       dim,
                       config.landmark_bits,
                       vector,
                       landmarks,
                       group.section + group.layout.landmark_scales);
    return;
  }
  const size_t offset = static_cast<size_t>(vector) * config.vector_bytes();
  std::byte* landmark = landmarks + offset;
  StoreVector(isa, mean, config.dtype, dim, landmark);
  if (config.selector != ShadowKvSelector::kBounds) {
    return;
  }
  LoadVector(isa, landmark, config.dtype, dim, mean);
  for (int64_t i = 0; i < dim; ++i) {
    float deviation = 0.0f;
    for (int64_t t = 0; t < config.chunk_tokens; ++t) {
      deviation = std::max(deviation, std::fabs(keys[t * config.width() + i] - mean[i]));
    }
    mean[i] = config.dtype == DType::kBF16 ? BF16ToF32(BF16AtLeast(deviation)) : deviation;
  }
  StoreVector(isa, mean, config.dtype, dim, group.section + group.layout.deviations + offset);
}

void CodeValue(const IsaKernels& isa,
               const CodingGroup& group,
               const float* value,
               int64_t vector) {
  const ShadowKvConfig& config = group.config;
  std::byte* values = group.value_section + group.layout.values;
  if (config.quantized_values()) {
    ShadowKvCodeVector(value,
                       config.head_dim,
                       config.value_bits,
                       vector,
                       values,
                       group.section + group.layout.value_scales);
    return;
  }
  StoreVector(isa,
              value,
              config.dtype,
              config.head_dim,
              values + static_cast<size_t>(vector) * config.vector_bytes());
}

}  // namespace

void LoadVector(
    const IsaKernels& isa, const std::byte* source, DType dtype, int64_t n, float* target) {
  if (dtype == DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
  } else {
    isa.widen(reinterpret_cast<const uint16_t*>(source), n, target);
  }
}

void StoreVector(
    const IsaKernels& isa, const float* source, DType dtype, int64_t n, std::byte* target) {
  if (dtype == DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
  } else {
    isa.narrow(source, n, reinterpret_cast<uint16_t*>(target));
  }
}

void ProjectKeys(const IsaKernels& isa,
                 const ShadowKvConfig& config,
                 const KeyProjection& projection,
                 const CodingScratch& scratch,
                 float* out) {
  const int64_t width = config.width();
  for (int64_t t = 0; t < projection.tokens; ++t) {
    Unrotate(isa,
             config,
             projection.rope,
             projection.key_bias,
             projection.position + t,
             scratch.keys + t * width,
             scratch.negated_sines,
             scratch.factored + t * width);
  }
  isa.dot_rows({.x = scratch.factored,
                .x_stride = width,
                .lines = projection.tokens,
                .rows = projection.basis,
                .row_stride = width,
                .count = config.rank,
                .bf16 = config.dtype == DType::kBF16,
                .depth = width,
                .out = out,
                .out_stride = config.rank});
}

void StoreCoefficients(const IsaKernels& isa,
                       const ShadowKvConfig& config,
                       const CodedRange& range,
                       const float* coefficients,
                       std::byte* target) {
  const int64_t first = range.token * config.rank;
  if (config.int8_coefficients) {
    auto* scales = reinterpret_cast<uint16_t*>(
        target + ShadowKvCoefficientLayout(config, range.tokens).scales);
    ShadowKvQuantizeCoefficients(coefficients,
                                 range.count,
                                 config.rank,
                                 reinterpret_cast<int8_t*>(target) + first,
                                 scales + range.token / kShadowKvBlockTokens * config.rank);
    return;
  }
  StoreVector(isa,
              coefficients,
              config.dtype,
              range.count * config.rank,
              target + static_cast<size_t>(first) * DTypeBytes(config.dtype));
}

CodingScratch CarveCoding(const ShadowKvConfig& config, Carver& carver) {
  CodingScratch scratch;
  scratch.keys = carver.Take<float>(kShadowKvBlockTokens * config.width());
  scratch.values = carver.Take<float>(kShadowKvBlockTokens * config.width());
  scratch.factored = carver.Take<float>(kShadowKvBlockTokens * config.width());
  scratch.coefficients = carver.Take<float>(kShadowKvBlockTokens * config.rank);
  scratch.negated_sines = carver.Take<float>(config.head_dim / 2);
  scratch.mean = carver.Take<float>(config.head_dim);
  return scratch;
}

void Unrotate(const IsaKernels& isa,
              const ShadowKvConfig& config,
              const ShadowKvRope& rope,
              const float* key_bias,
              int64_t position,
              const float* key,
              float* negated_sines,
              float* out) {
  const int64_t half = config.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    negated_sines[i] = -rope.sines[position * half + i];
  }
  std::copy(key, key + config.width(), out);
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    isa.rope(out + head * config.head_dim, rope.cosines + position * half, negated_sines, half);
  }
  for (int64_t i = 0; key_bias != nullptr && i < config.width(); ++i) {
    out[i] -= key_bias[i];
  }
}

void CodeGroup(const IsaKernels& isa,
               const CodingGroup& group,
               const CodingScratch& scratch,
               float* chunk_scores) {
  const ShadowKvConfig& config = group.config;
  const int64_t width = config.width();
  const bool q2 = config.selector == ShadowKvSelector::kQ2;
  if (!config.joint) {
    CodeCoefficients(isa, group, scratch);
  }
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const float* keys = scratch.keys + head * config.head_dim;
    const float* values = scratch.values + head * config.head_dim;
    for (int64_t t = 0; t < group.tokens; ++t) {
      const int64_t chunk = (group.token + t) / config.chunk_tokens;
      const int64_t vector = head * group.layout.tokens + group.token + t;
      if (t % config.chunk_tokens == 0 && (!q2 || chunk_scores != nullptr)) {
        MeanKey(config, keys + t * width, scratch.mean);
        if (chunk_scores != nullptr) {
          chunk_scores[head * group.layout.chunks + chunk] =
              SmallestCosine(isa, config, keys + t * width, scratch.mean);
        }
        if (!q2) {
          CodeLandmark(isa, group, keys + t * width, head, chunk, scratch.mean);
        }
      }
      if (q2) {
        ShadowKvCodeVector(keys + t * width,
                           config.head_dim,
                           2,
                           vector,
                           group.section + group.layout.key_codes,
                           group.section + group.layout.key_scales);
      }
      CodeValue(isa, group, values + t * width, vector);
    }
  }
}

}  // namespace baton::kernels::cpu
