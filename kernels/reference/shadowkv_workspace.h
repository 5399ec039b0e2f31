// Scratch memory of the reference's shadowkv ops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_factor.h"

namespace baton::kernels::reference {

struct EncodeScratch {
  CodingScratch coding;
  FactorScratch factor;           // without joint coefficients
  float* chunk_scores = nullptr;  // [kv_heads, chunks]
  int32_t* order = nullptr;       // [chunks]
  ShadowKvClusterScratch clusters;
};
EncodeScratch CarveEncode(const ShadowKvPromptLayout& layout, Carver& carver);

struct SelectScratch {
  double* logits = nullptr;  // [chunks]
  double* scores = nullptr;  // [chunks]
  int32_t* order = nullptr;  // [chunks]
  bool* taken = nullptr;     // [chunks]: static or selected; value clusters only
};
SelectScratch CarveSelect(const ShadowKvConfig& config, int64_t chunks, Carver& carver);

struct AttendScratch {
  float* keys = nullptr;          // [tokens, head_dim]
  float* values = nullptr;        // [tokens, head_dim]
  int32_t* plan = nullptr;        // [budget chunks]
  int32_t* free_slots = nullptr;  // [budget chunks]
};
// `tokens` attended by one head.
AttendScratch CarveAttend(const ShadowKvConfig& config, int64_t tokens, Carver& carver);

}  // namespace baton::kernels::reference
