// Scratch memory of the CPU back end's shadowkv ops: shared arrays, then one slice per thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/shadowkv_factor.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"

namespace baton::kernels::cpu {

struct EncodeScratch {
  FactorScratch factor;           // without joint coefficients
  float* chunk_scores = nullptr;  // [kv_heads][chunks]
  int32_t* order = nullptr;       // [kv_heads][chunks]
  ShadowKvClusterScratch clusters;
};
EncodeScratch CarveEncode(const IsaKernels& isa,
                          const ShadowKvPromptLayout& layout,
                          Carver& carver);

struct SelectScratch {
  float* magnitudes = nullptr;  // [group][head_dim]: |q|; where rows are in codes [group]: sum(q)
  float* logits = nullptr;      // [group][chunks]
  float* scores = nullptr;      // [chunks]
  int32_t* order = nullptr;     // [chunks]
  float* codes = nullptr;       // [64][head_dim]: unpacked 2-bit keys or landmarks
  float* dots = nullptr;        // [group][64]
  float* tokens = nullptr;      // [group][tokens]: logits; value clusters only
  float* sums = nullptr;        // [clusters]
};
SelectScratch CarveSelect(const ShadowKvConfig& config,
                          int64_t group,
                          int64_t chunks,
                          Carver& carver);

struct AttendScratch {
  AttentionScratch attention;
  float* basis = nullptr;         // [panels of head_dim][rank][panel_columns]
  float* coefficients = nullptr;  // [64][rank]
  float* scales = nullptr;        // [rank]
  float* keys = nullptr;          // [64][head_dim]
  float* value = nullptr;         // [head_dim]
  float* cluster = nullptr;       // [head_dim]; value clusters only
  int32_t* plan = nullptr;        // [budget chunks]
  int32_t* free_slots = nullptr;  // [budget chunks]
  // Stands in for a cache when there is none: [budget chunks][chunk][head_dim] dtype each.
  std::byte* slot_keys = nullptr;
  std::byte* slot_values = nullptr;
};
AttendScratch CarveAttend(const IsaKernels& isa, const ShadowKvConfig& config, Carver& carver);

}  // namespace baton::kernels::cpu
