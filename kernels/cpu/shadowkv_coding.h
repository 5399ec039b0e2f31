// What encode and append of the CPU back end share: coding one group of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cpu {

// Widens n elements of `dtype` to fp32, and back.
void LoadVector(
    const IsaKernels& isa, const std::byte* source, DType dtype, int64_t n, float* target);
void StoreVector(
    const IsaKernels& isa, const float* source, DType dtype, int64_t n, std::byte* target);

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
};

// One thread's scratch of CodeGroup.
struct CodingScratch {
  float* keys = nullptr;           // [64, width]: of the group after RoPE, filled by the caller
  float* values = nullptr;         // [64, width]: of the group, filled by the caller
  float* factored = nullptr;       // [64, width]
  float* coefficients = nullptr;   // [64, rank]
  float* negated_sines = nullptr;  // [head_dim / 2]
  float* mean = nullptr;           // [head_dim]
};
CodingScratch CarveCoding(const ShadowKvConfig& config, Carver& carver);

// out = R(position)^-1 key - key_bias, all heads.
void Unrotate(const IsaKernels& isa,
              const ShadowKvConfig& config,
              const ShadowKvRope& rope,
              const float* key_bias,
              int64_t position,
              const float* key,
              float* negated_sines,
              float* out);

// At most 64 consecutive tokens of one layer whose keys, after RoPE, are in CodingScratch::keys.
struct KeyProjection {
  const std::byte* basis = nullptr;  // [rank][width]
  ShadowKvRope rope;
  const float* key_bias = nullptr;
  int64_t position = 0;  // of the first token
  int64_t tokens = 0;
};

// out, [tokens][rank], = the un-rotated keys times the basis, transposed.
void ProjectKeys(const IsaKernels& isa,
                 const ShadowKvConfig& config,
                 const KeyProjection& projection,
                 const CodingScratch& scratch,
                 float* out);

// Part of a section of coefficients.
struct CodedRange {
  int64_t tokens = 0;  // of the section
  int64_t token = 0;   // the first, a multiple of 64
  int64_t count = 0;   // at most 64
};

// Codes coefficients, [count][rank], into `target`, a ShadowKvCoefficientLayout.
void StoreCoefficients(const IsaKernels& isa,
                       const ShadowKvConfig& config,
                       const CodedRange& range,
                       const float* coefficients,
                       std::byte* target);

// Writes the group's coefficients, unless they are joint, selector data and values. chunk_scores,
// [kv_heads][layout.chunks] or null, gets every chunk's smallest cosine between its mean key and a
// key (ShadowKV Algorithm 1; a zero vector's cosine counts as 0).
void CodeGroup(const IsaKernels& isa,
               const CodingGroup& group,
               const CodingScratch& scratch,
               float* chunk_scores);

}  // namespace baton::kernels::cpu
