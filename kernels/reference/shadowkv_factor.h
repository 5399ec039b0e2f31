// The low-rank basis of a prompt's keys, of one layer or of several side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/carver.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/shadowkv_coding.h"

namespace baton::kernels::reference {

// Where the prompt's tokens are.
struct PromptKeys {
  const ShadowKvConfig& config;
  const DensePages& pages;
  ShadowKvRope rope;
  int64_t tokens = 0;
};

// A layer to be factored; `basis`, [rank][width] of the configuration's dtype, is written.
struct FactorLayer {
  const int32_t* page_table = nullptr;
  const float* key_bias = nullptr;
  std::byte* basis = nullptr;
};

struct FactorScratch {
  double* gram = nullptr;     // [columns, columns]
  double* vectors = nullptr;  // [columns, columns]
  int32_t* order = nullptr;   // [columns]
  float* row = nullptr;       // [columns]
};
FactorScratch CarveFactor(const ShadowKvConfig& config, int64_t layers, Carver& carver);

// Widens tokens [first, first + count) of every head, keys or values, into out[count, width].
void LoadPromptTokens(const DensePages& pages,
                      const int32_t* page_table,
                      int64_t first,
                      int64_t count,
                      bool value,
                      float* out);

// Finds the config.rank eigenvectors of the largest eigenvalues of the Gram matrix of the
// un-rotated keys, the layers side by side, and writes every layer's columns of them; each vector
// has its largest element positive.
void FactorKeys(const PromptKeys& keys,
                std::span<const FactorLayer> layers,
                const CodingScratch& coding,
                const FactorScratch& scratch);

}  // namespace baton::kernels::reference
