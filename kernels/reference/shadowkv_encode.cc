#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/jacobi.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_workspace.h"

namespace baton::kernels::reference {
namespace {

// Widens tokens [first, first + count) of every head into keys and values, [count, width] each.
void LoadTokens(
    const ShadowKvEncodeParams& params, int64_t first, int64_t count, float* keys, float* values) {
  const DensePageLayout& layout = params.pages.layout;
  for (int64_t t = 0; t < count; ++t) {
    const PageSlot at = LocatePromptToken(params, first + t);
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      for (int32_t i = 0; i < layout.head_dim; ++i) {
        const int64_t column = t * params.layout.config.width() + head * layout.head_dim + i;
        keys[column] = LoadElement(
            at.page + layout.key_offset(head, at.slot), layout.dtype, static_cast<size_t>(i));
        values[column] = LoadElement(
            at.page + layout.value_offset(head, at.slot), layout.dtype, static_cast<size_t>(i));
      }
    }
  }
}

// gram = sum over tokens of k k^T, k the un-rotated keys of all heads.
void ComputeGram(const ShadowKvEncodeParams& params, const EncodeScratch& scratch) {
  const int64_t width = params.layout.config.width();
  std::fill(scratch.gram, scratch.gram + width * width, 0.0);
  const float* k = scratch.coding.factored;
  for (int64_t token = 0; token < params.layout.prompt_tokens; ++token) {
    LoadTokens(params, token, 1, scratch.coding.keys, scratch.coding.values);
    Unrotate(params.layout.config,
             params.rope,
             params.key_bias,
             token,
             scratch.coding.keys,
             scratch.coding.factored);
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        scratch.gram[i * width + j] += double{k[i]} * double{k[j]};
      }
    }
  }
}

// The `rank` eigenvectors of the largest eigenvalues, each with its largest element positive.
void WriteBasis(const ShadowKvEncodeParams& params, const EncodeScratch& scratch) {
  const ShadowKvConfig& config = params.layout.config;
  const int64_t width = config.width();
  JacobiEigen(width, scratch.gram, scratch.vectors);
  std::iota(scratch.order, scratch.order + width, 0);
  std::sort(scratch.order, scratch.order + width, [&](int32_t a, int32_t b) {
    const double first = scratch.gram[a * width + a];
    const double second = scratch.gram[b * width + b];
    return first != second ? first > second : a < b;
  });
  for (int64_t j = 0; j < config.rank; ++j) {
    const double* vector = scratch.vectors + scratch.order[j] * width;
    const double largest = *std::max_element(
        vector, vector + width, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double sign = largest < 0.0 ? -1.0 : 1.0;
    for (int64_t i = 0; i < width; ++i) {
      StoreElement(params.prompt + params.layout.basis,
                   config.dtype,
                   j * width + i,
                   static_cast<float>(sign * vector[i]));
    }
  }
}

void CodeTokens(const ShadowKvEncodeParams& params, const EncodeScratch& scratch) {
  const ShadowKvPromptLayout& layout = params.layout;
  for (int64_t token = 0; token < layout.coded.tokens; token += kShadowKvBlockTokens) {
    const int64_t count = std::min(kShadowKvBlockTokens, layout.coded.tokens - token);
    LoadTokens(params, token, count, scratch.coding.keys, scratch.coding.values);
    CodeGroup({.config = layout.config,
               .layout = layout.coded,
               .section = params.prompt + layout.coded_begin,
               .basis = params.prompt + layout.basis,
               .rope = params.rope,
               .key_bias = params.key_bias,
               .position = token,
               .token = token,
               .tokens = count,
               .keys = scratch.coding.keys,
               .values = scratch.coding.values},
              scratch.coding,
              scratch.chunk_scores);
  }
}

}  // namespace

absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  Carver counter(nullptr);
  CarveEncode(params.layout, counter);
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_encode", context, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const EncodeScratch scratch = CarveEncode(params.layout, carver);
  std::memset(params.prompt, 0, params.layout.bytes);
  ComputeGram(params, scratch);
  WriteBasis(params, scratch);
  CodeTokens(params, scratch);
  for (int32_t head = 0; head < params.layout.config.kv_heads; ++head) {
    WriteShadowKvExact(
        params, head, scratch.chunk_scores + head * params.layout.coded.chunks, scratch.order);
    WriteShadowKvClusters(params, head, scratch.clusters);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
