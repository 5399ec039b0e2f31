// The innermost loops of the CPU back end, one set per instruction set. They see raw pointers only
// and are the only code compiled with vector flags (isa_*.cc), so nothing else can pick up an
// instruction that the machine lacks. Everything above them (checks, threads, paging) is compiled
// once.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/unobserved_range.h"

namespace baton::kernels::cpu {

// Weights are packed in panels of `IsaKernels::panel_columns` output features, and the sum over
// input features is split every kDepthBlock: inside a block one fused multiply-add after the other,
// then block results are added in order. This order is the same for every number of rows.
inline constexpr int64_t kDepthBlock = 256;

// Tokens of a KV block: attention's softmax is renormalised once per block, and blocks start at
// multiples of this from the sequence's first key on, so that a row's result does not depend on
// where its step began.
inline constexpr int kKvBlockTokens = 64;

// out[rows][columns] (+)= x[rows][depth] * panel, for one depth block of one panel.
struct PanelTask {
  const float* x = nullptr;  // [rows][depth]
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t depth = 0;            // at most kDepthBlock
  const void* panel = nullptr;  // [depth][panel_columns], fp32 or bf16 pairs (see matmul.h)
  int64_t panel_stride = 0;     // elements from one panel to the next
  int64_t columns = 0;          // may span several panels
  const float* bias = nullptr;  // [columns] or null
  bool accumulate = false;      // add what `out` holds
  float* out = nullptr;         // [rows][columns]
  int64_t out_stride = 0;
};

// Running softmax of a tile of attention lines; a line is one (row, query head) pair. All arrays
// are scratch of the calling thread. `width` is head_dim rounded up to panel_columns.
struct AttentionTile {
  int64_t lines = 0;
  int64_t head_dim = 0;
  int64_t width = 0;
  const int32_t* first_key = nullptr;  // [lines] first key that the line may see
  const int32_t* last_key = nullptr;   // [lines] last key: the line's own position
  float* q = nullptr;                  // [lines][width], times scale * log2(e); zero past head_dim
  float* row_max = nullptr;            // [lines]
  float* row_sum = nullptr;            // [lines][panel_columns / 2], partial sums by lane
  float* sum_values = nullptr;         // [lines][width], weighted values
  float* scores = nullptr;             // [tile rows][kKvBlockTokens]
  float* keys = nullptr;               // [head_dim][kKvBlockTokens], transposed and widened
  float* values = nullptr;             // [kKvBlockTokens][width], widened
};

enum class KvElement : uint8_t { kF32, kBF16, kF8E4M3 };

// One KV block of one head as it lies in its pages: the address of each token's head_dim elements.
struct KvBlock {
  const std::byte* keys[kKvBlockTokens] = {};
  const std::byte* values[kKvBlockTokens] = {};
  // kF8E4M3 only: what each token's elements are multiplied with, 0 past `tokens`.
  float key_scales[kKvBlockTokens] = {};
  float value_scales[kKvBlockTokens] = {};
  int tokens = 0;        // tokens present; the others are zero-filled
  int32_t position = 0;  // of token 0
  KvElement element = KvElement::kBF16;
};

// Query heads of one KV head that share an unpacked page of format `diffkv`, and their sums over a
// split's pages. Codes are used as signed numbers, code - 2^(bits - 1), so that an offset common to
// all codes does not cancel in fp32; it moves into the zero. All arrays are scratch of the calling
// thread.
struct QuantHeads {
  int64_t heads = 0;  // at most IsaKernels::quant_heads
  int32_t head_dim = 0;
  const float* q = nullptr;       // [head_dim][heads], in the order of key codes, scaled by log2(e)
  const float* q_sums = nullptr;  // [heads], sum of the scaled query
  float* max = nullptr;           // [heads], largest score
  float* sums = nullptr;          // [heads][16], weights, by lane
  float* zero_sums = nullptr;     // [heads][16], weight * value zero, by lane
  float* weights = nullptr;       // [4 * page_tokens][heads], a page's weights in value code order
  float* values = nullptr;        // [head_dim / 4][heads][16], weighted value codes, by word
};

// One page of format `diffkv` as QuantHeads see it.
struct QuantPage {
  const std::byte* key_codes = nullptr;
  const std::byte* key_ranges = nullptr;  // fp16 scale and zero per token
  const std::byte* value_codes = nullptr;
  const std::byte* value_ranges = nullptr;
  const int32_t* positions = nullptr;
  int32_t key_bits = 8;
  int32_t value_bits = 4;
  int32_t key_unit_bytes = 16;
  int32_t value_lane_words = 4;
  int32_t page_tokens = 0;
  int32_t tokens = 0;          // in use
  int32_t oldest = INT32_MIN;  // tokens of earlier positions are not seen
  float* scores = nullptr;     // [heads][score_stride], base-2 scores of this page's tokens
  int64_t score_stride = 0;
};

// Which stored tokens a generation step may touch: those of positions [sinks, newest] whose age is
// above 0.
struct SurveyLimits {
  int32_t position = 0;
  const UnobservedRange* unobserved = nullptr;
  int32_t unobserved_count = 0;
  int32_t newest = 0;
  int32_t sinks = 0;
};

// out[line][row] (+)= x[line] . rows[row], for rows as they lie in memory.
struct DotRowsTask {
  const float* x = nullptr;  // [lines][depth]
  int64_t x_stride = 0;
  int64_t lines = 0;
  const std::byte* rows = nullptr;  // [count][depth]
  int64_t row_stride = 0;           // elements
  int64_t count = 0;
  bool bf16 = true;  // element type of rows, else fp32
  int64_t depth = 0;
  bool accumulate = false;  // add what `out` holds
  float* out = nullptr;     // [lines][count]
  int64_t out_stride = 0;
};

// out[rows][columns] = a[rows][depth] b[depth][columns] in fp64.
struct MatmulF64Task {
  const double* a = nullptr;
  int64_t a_stride = 0;
  const double* b = nullptr;
  int64_t b_stride = 0;
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t columns = 0;
  double* out = nullptr;
  int64_t out_stride = 0;
};

struct IsaKernels {
  const char* name;
  int panel_columns;  // two vectors
  int tile_rows;      // rows of the largest register tile
  int quant_heads;    // most heads of QuantHeads

  // PanelTask over a bf16 panel, widening in the load: few rows.
  void (*panel_bf16)(const PanelTask&);
  // PanelTask over an fp32 panel.
  void (*panel_f32)(const PanelTask&);
  // Widens `depth` rows of one bf16 panel into fp32: many rows, then panel_f32.
  void (*widen_panel)(const uint16_t* panel, int64_t depth, float* out);

  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t dim, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t dim, float* out);
  // Rotates one head in place.
  void (*rope)(float* x, const float* cosines, const float* sines, int64_t half_dim);
  void (*widen)(const uint16_t* x, int64_t n, float* out);
  void (*narrow)(const float* x, int64_t n, uint16_t* out);
  // EncodeFp8 of kernels/kv_format/fp8.h, with the same bytes.
  float (*encode_fp8)(const float* x, int64_t n, uint8_t* codes);

  // Copies one line's query into the tile, scaled, and resets its running softmax.
  void (*attention_begin)(const AttentionTile&, int64_t line, const float* q, float scale);
  // Brings one KV block into the tile's keys and values.
  void (*attention_load)(const AttentionTile&, const KvBlock&);
  // Folds the loaded block into every line that sees one of its tokens.
  void (*attention_fold)(const AttentionTile&, const KvBlock&);
  // Writes one line's attention output, [head_dim].
  void (*attention_finish)(const AttentionTile&, int64_t line, float* out);

  // The keys of attention_load alone.
  void (*attention_load_keys)(const AttentionTile&, const KvBlock&);
  // attention_fold without values: maxima and sums of weights only.
  void (*attention_measure)(const AttentionTile&, const KvBlock&);
  // Raises out[line / group][token] to the line's probability, its weight times factors[line], once
  // the maxima are final. `out` points at the block's first token of the tile's first row.
  void (*attention_raise)(const AttentionTile&,
                          const KvBlock&,
                          const float* factors,
                          int64_t group,
                          float* out,
                          int64_t out_stride);

  // QuantizeVector (kernels/kv_format/quantize.h), with the same bits.
  QuantRange (*quantize)(const float* x, int64_t n, int32_t bits, uint8_t* codes);
  // The least score / age of n stored tokens that compete (DiffKvCompetes), +inf if none does; age
  // is DiffKvAge (kernels/ops/diffkv_policy.h). Reads whole vectors past n.
  float (*least_mean)(const float* scores,
                      const int32_t* positions,
                      int64_t n,
                      const SurveyLimits& limits);

  // Writes a page's scores and raises the heads' maxima.
  void (*quant_scores)(const QuantHeads&, const QuantPage&);
  // Adds a page's values, weighted by 2^(score - max), to the heads' sums.
  void (*quant_values)(const QuantHeads&, const QuantPage&);
  // out[i] = the largest 2^(scores[h][i] - max[h]) * factor[h] of all heads, or what out[i] holds
  // if that is larger and `raise` is set.
  void (*quant_probabilities)(const float* scores,
                              int64_t score_stride,
                              int64_t heads,
                              int64_t tokens,
                              const float* max,
                              const float* factor,
                              bool raise,
                              float* out);
  void (*dot_rows)(const DotRowsTask&);
  // log(sum e^x[i]); -inf elements count nothing.
  float (*log_sum_exp)(const float* x, int64_t n);
  // x[i] = e^(x[i] - max x) in place, 0 for -inf; returns the maximum. All -inf: all become 0.
  float (*exp_below_max)(float* x, int64_t n);
  // out[panel_columns][panel_columns] = a^T b, a and b panels of [depth][panel_columns].
  void (*gram_panel)(const float* a, const float* b, int64_t depth, float* out);
  void (*matmul_f64)(const MatmulF64Task&);
  double (*dot_f64)(const double* x, const double* y, int64_t n);
  // y += factor * x.
  void (*add_scaled_f64)(double factor, const double* x, double* y, int64_t n);
  // (x, y) = (cosine x - sine y, sine x + cosine y).
  void (*rotate_f64)(double* x, double* y, double cosine, double sine, int64_t n);
};

extern const IsaKernels kPortableKernels;
#if defined(__x86_64__)
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;
#endif

}  // namespace baton::kernels::cpu
