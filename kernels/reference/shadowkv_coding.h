// What encode and append of the reference share: coding one group of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::reference {

// At most 64 consecutive tokens, whole chunks, that start a multiple of 64 into a coded section.
struct CodingGroup {
  const ShadowKvConfig& config;
  const ShadowKvCodedLayout& layout;
  std::byte* section = nullptr;
  std::byte* value_section = nullptr;  // what layout.values counts from: section, or values apart
  const std::byte* basis = nullptr;
  ShadowKvRope rope;
  const float* key_bias = nullptr;
  int64_t position = 0;  // of the first token
  int64_t token = 0;     // of the first token, in the section
  int64_t tokens = 0;
  const float* keys = nullptr;    // [tokens, kv_heads * head_dim] after RoPE
  const float* values = nullptr;  // [tokens, kv_heads * head_dim]
};

// Scratch of CodeGroup.
struct CodingScratch {
  float* keys = nullptr;          // [64, width]: of the group, filled by the caller
  float* values = nullptr;        // [64, width]: of the group, filled by the caller
  float* factored = nullptr;      // [width]
  float* coefficients = nullptr;  // [64, rank]
  float* mean = nullptr;          // [head_dim]
};

template <typename Carver>
CodingScratch CarveCoding(const ShadowKvConfig& config, Carver& carver) {
  CodingScratch scratch;
  scratch.keys = carver.template Take<float>(kShadowKvBlockTokens * config.width());
  scratch.values = carver.template Take<float>(kShadowKvBlockTokens * config.width());
  scratch.factored = carver.template Take<float>(config.width());
  scratch.coefficients = carver.template Take<float>(kShadowKvBlockTokens * config.rank);
  scratch.mean = carver.template Take<float>(config.head_dim);
  return scratch;
}

// Stores value as element `index` of an array of `dtype`.
void StoreElement(std::byte* data, DType dtype, int64_t index, float value);

// out = R(position)^-1 key - key_bias, all heads: what the basis factors.
void Unrotate(const ShadowKvConfig& config,
              const ShadowKvRope& rope,
              const float* key_bias,
              int64_t position,
              const float* key,
              float* out);

// Where a layer's keys are projected to.
struct KeyProjection {
  const std::byte* basis = nullptr;  // [rank][width]
  ShadowKvRope rope;
  const float* key_bias = nullptr;
  int64_t position = 0;
};

// out, [rank], = the un-rotated key times the basis, transposed; factored, [width], is scratch.
void ProjectKey(const ShadowKvConfig& config,
                const KeyProjection& projection,
                const float* key,
                float* factored,
                float* out);

// Part of a section of coefficients.
struct CodedRange {
  int64_t tokens = 0;  // of the section
  int64_t token = 0;   // the first, a multiple of 64
  int64_t count = 0;   // at most 64
};

// Codes coefficients, [count][rank], into `target`, a ShadowKvCoefficientLayout.
void StoreCoefficients(const ShadowKvConfig& config,
                       const CodedRange& range,
                       const float* coefficients,
                       std::byte* target);

// Writes the group's coefficients, unless they are joint, selector data and values. chunk_scores,
// [kv_heads][layout.chunks] or null, gets every chunk's smallest cosine between its mean key and a
// key (ShadowKV Algorithm 1; a zero vector's cosine counts as 0).
void CodeGroup(const CodingGroup& group, const CodingScratch& scratch, float* chunk_scores);

}  // namespace baton::kernels::reference
