// Sizes of a set of sequences in format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/bench_case.h"

namespace baton::kernels::cuda {

// Sequences of one length; each has one generated token behind its prompt, or is to get it next.
struct ShadowKvLoad {
  static constexpr int64_t kGenerated = 1;

  ShadowKvPromptLayout layout;
  int32_t layers = 1;
  int32_t rows = 1;
  int64_t max_generated = kGenerated;  // tokens that tails have room for

  const ShadowKvConfig& config() const { return layout.config; }
  int64_t sequences() const { return int64_t{layers} * rows; }
  int32_t position() const { return static_cast<int32_t>(layout.prompt_tokens); }
  size_t tail_bytes() const { return ShadowKvTailLayout(layout, max_generated).bytes; }
  size_t cache_bytes() const {
    return ShadowKvCacheLayout(config(), ShadowKvCachedValues::kStored).bytes;
  }
  // Of values apart, prompt's and tail's; 0 for values in their place.
  size_t prompt_value_bytes() const { return layout.coded.value_bytes; }
  size_t tail_value_bytes() const {
    const ShadowKvTailLayout tail(layout, max_generated);
    return tail.value_block_begin(tail.block_count);
  }
  // Static, local and generated tokens of a KV head.
  int64_t exact_tokens() const {
    return layout.static_chunks * config().chunk_tokens + layout.local_tokens + kGenerated;
  }
  // Ids of selected chunks of all KV heads of a row, and of all rows of a layer.
  int64_t row_ids() const { return config().kv_heads * config().budget_chunks(); }
  int64_t layer_ids() const { return rows * row_ids(); }

  // What selection reads of a layer: landmarks of all coded chunks that are not static, each once.
  double select_bytes() const {
    const int64_t chunks = layout.coded.chunks - layout.static_chunks;
    const size_t range = config().quantized_landmarks() ? sizeof(uint32_t) : 0;
    return static_cast<double>(config().landmark_bytes() + range) *
           static_cast<double>(rows * config().kv_heads * chunks);
  }
  // What attention reads of a layer, of every row: keys and values of exact tokens, codes and
  // ranges of selected values, cached keys of `hits` chunks a head, the basis, and the coefficients
  // of every chunk that one head or several miss, each once (ShadowKvChunkLists::missed_chunks).
  // Angles are not in it: one table serves all layers and sequences.
  double attention_bytes(int64_t hits, double missed_chunks) const {
    const auto vector = static_cast<double>(config().vector_bytes());
    const auto value = static_cast<double>(config().coded_value_bytes() +
                                           (config().quantized_values() ? sizeof(uint32_t) : 0));
    const auto chunk = static_cast<double>(config().chunk_tokens);
    const double head = 2.0 * vector * static_cast<double>(exact_tokens()) +
                        value * chunk * static_cast<double>(config().budget_chunks()) +
                        vector * chunk * static_cast<double>(hits) +
                        vector * static_cast<double>(config().rank);
    const double coefficients = sizeof(uint16_t) * chunk * static_cast<double>(config().rank);
    return head * rows * config().kv_heads + coefficients * missed_chunks;
  }

  // What attention reads of a layer from the host's memory: values apart of the selected chunks
  // that no cache has, without their ranges.
  double link_bytes(int64_t hits) const {
    const int64_t chunks = config().values_apart ? config().budget_chunks() - hits : 0;
    return static_cast<double>(config().coded_value_bytes()) *
           static_cast<double>(rows * config().kv_heads * config().chunk_tokens * chunks);
  }

  ShadowKvBounds bounds() const {
    return {.dtype = config().dtype,
            .kv_heads = config().kv_heads,
            .head_dim = config().head_dim,
            .max_chunks = layout.coded.chunks,
            .max_budget_tokens = config().budget_chunks() * config().chunk_tokens,
            .max_exact_tokens = exact_tokens(),
            .cached = true,
            .caches_values = config().values_apart,
            .chunk_key_rank = ShadowKvChunkKeyRank(config())};
  }
};

// How values of coded tokens and landmarks are kept.
struct ShadowKvCodes {
  int32_t value_bits = 4;       // 16: bf16
  bool values_on_host = false;  // in pinned memory of the host
  int32_t landmark_bits = 16;   // 8, or 16: bf16
};

// The setting of ShadowKV's throughput runs (section 5): rank 160, chunks of 8, a budget of 2048
// tokens beside 48 outlier chunks and a window of 64 tokens.
inline ShadowKvConfig ShadowKvConfigOf(int32_t kv_heads,
                                       int32_t head_dim,
                                       const ShadowKvCodes& codes = {}) {
  return {.rank = 160,
          .chunk_tokens = 8,
          .budget_tokens = 2048,
          .outlier_chunks = 48,
          .local_chunks = 8,
          .value_bits = codes.value_bits,
          .landmark_bits = codes.landmark_bits,
          .values_apart = codes.values_on_host,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

inline ShadowKvLoad ShadowKvLoadOf(const BenchShape& shape, const ShadowKvCodes& codes = {}) {
  return {.layout = {ShadowKvConfigOf(shape.kv_heads, shape.head_dim, codes), shape.tokens},
          .layers = BenchCase::kLayers,
          .rows = shape.rows};
}

}  // namespace baton::kernels::cuda
