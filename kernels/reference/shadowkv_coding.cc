#include "kernels/reference/shadowkv_coding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

void CodeCoefficients(const CodingGroup& group, const CodingScratch& scratch) {
  const ShadowKvConfig& config = group.config;
  for (int64_t t = 0; t < group.tokens; ++t) {
    ProjectKey(config,
               {.basis = group.basis,
                .rope = group.rope,
                .key_bias = group.key_bias,
                .position = group.position + t},
               group.keys + t * config.width(),
               scratch.factored,
               scratch.coefficients + t * config.rank);
  }
  StoreCoefficients(config,
                    {.tokens = group.layout.tokens, .token = group.token, .count = group.tokens},
                    scratch.coefficients,
                    group.section + group.layout.coefficients);
}

double Cosine(const float* a, const float* b, int64_t n) {
  double dot = 0.0;
  double aa = 0.0;
  double bb = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    dot += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return aa > 0.0 && bb > 0.0 ? dot / std::sqrt(aa * bb) : 0.0;
}

// Landmark, deviation and outlier score of one chunk; keys start at its first key, `width` apart.
void CodeChunk(const CodingGroup& group,
               const float* keys,
               int64_t head,
               int64_t chunk,
               float* mean,
               float* chunk_scores) {
  const ShadowKvConfig& config = group.config;
  const int64_t width = config.width();
  const int64_t first = (head * group.layout.chunks + chunk) * config.head_dim;
  for (int64_t i = 0; i < config.head_dim; ++i) {
    mean[i] = keys[i];
    for (int64_t t = 1; t < config.chunk_tokens; ++t) {
      mean[i] += keys[t * width + i];
    }
    mean[i] /= static_cast<float>(config.chunk_tokens);
    if (config.selector == ShadowKvSelector::kQ2 || config.quantized_landmarks()) {
      continue;
    }
    std::byte* landmarks = group.section + group.layout.landmarks;
    StoreElement(landmarks, config.dtype, first + i, mean[i]);
    if (config.selector == ShadowKvSelector::kBounds) {
      const float stored = LoadElement(landmarks, config.dtype, static_cast<size_t>(first + i));
      float deviation = 0.0f;
      for (int64_t t = 0; t < config.chunk_tokens; ++t) {
        deviation = std::max(deviation, std::fabs(keys[t * width + i] - stored));
      }
      if (config.dtype == DType::kBF16) {
        deviation = BF16ToF32(BF16AtLeast(deviation));
      }
      StoreElement(group.section + group.layout.deviations, config.dtype, first + i, deviation);
    }
  }
  if (config.quantized_landmarks()) {
    const int64_t vector = head * group.layout.chunks + chunk;
    ShadowKvCodeVector(mean,
                       config.head_dim,
                       config.landmark_bits,
                       vector,
                       group.section + group.layout.landmarks,
                       group.section + group.layout.landmark_scales);
  }
  if (chunk_scores != nullptr) {
    double score = 2.0;
    for (int64_t t = 0; t < config.chunk_tokens; ++t) {
      score = std::min(score, Cosine(mean, keys + t * width, config.head_dim));
    }
    chunk_scores[head * group.layout.chunks + chunk] = static_cast<float>(score);
  }
}

void CodeValue(const CodingGroup& group, const float* value, int64_t head, int64_t token) {
  const ShadowKvConfig& config = group.config;
  const int64_t vector = head * group.layout.tokens + token;
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
  for (int64_t i = 0; i < config.head_dim; ++i) {
    StoreElement(values, config.dtype, vector * config.head_dim + i, value[i]);
  }
}

void CodeKey(const CodingGroup& group, const float* key, int64_t head, int64_t token) {
  ShadowKvCodeVector(key,
                     group.config.head_dim,
                     2,
                     head * group.layout.tokens + token,
                     group.section + group.layout.key_codes,
                     group.section + group.layout.key_scales);
}

}  // namespace

void StoreElement(std::byte* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(data)[index] = value;
  } else {
    reinterpret_cast<uint16_t*>(data)[index] = F32ToBF16(value);
  }
}

void Unrotate(const ShadowKvConfig& config,
              const ShadowKvRope& rope,
              const float* key_bias,
              int64_t position,
              const float* key,
              float* out) {
  const int64_t half = config.head_dim / 2;
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      const float cosine = rope.cosines[position * half + i];
      const float sine = rope.sines[position * half + i];
      const int64_t low = head * config.head_dim + i;
      const int64_t high = low + half;
      out[low] = key[low] * cosine + key[high] * sine;
      out[high] = key[high] * cosine - key[low] * sine;
      if (key_bias != nullptr) {
        out[low] -= key_bias[low];
        out[high] -= key_bias[high];
      }
    }
  }
}

void ProjectKey(const ShadowKvConfig& config,
                const KeyProjection& projection,
                const float* key,
                float* factored,
                float* out) {
  const int64_t width = config.width();
  Unrotate(config, projection.rope, projection.key_bias, projection.position, key, factored);
  for (int64_t j = 0; j < config.rank; ++j) {
    double sum = 0.0;
    for (int64_t i = 0; i < width; ++i) {
      sum +=
          double{factored[i]} *
          double{LoadElement(projection.basis, config.dtype, static_cast<size_t>(j * width + i))};
    }
    out[j] = static_cast<float>(sum);
  }
}

void StoreCoefficients(const ShadowKvConfig& config,
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
  for (int64_t i = 0; i < range.count * config.rank; ++i) {
    StoreElement(target, config.dtype, first + i, coefficients[i]);
  }
}

void CodeGroup(const CodingGroup& group, const CodingScratch& scratch, float* chunk_scores) {
  const ShadowKvConfig& config = group.config;
  const int64_t width = config.width();
  if (!config.joint) {
    CodeCoefficients(group, scratch);
  }
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const int64_t column = head * config.head_dim;
    for (int64_t t = 0; t < group.tokens; ++t) {
      if (t % config.chunk_tokens == 0) {
        CodeChunk(group,
                  group.keys + t * width + column,
                  head,
                  (group.token + t) / config.chunk_tokens,
                  scratch.mean,
                  chunk_scores);
      }
      if (config.selector == ShadowKvSelector::kQ2) {
        CodeKey(group, group.keys + t * width + column, head, group.token + t);
      }
      CodeValue(group, group.values + t * width + column, head, group.token + t);
    }
  }
}

}  // namespace baton::kernels::reference
