// Parameters of every op. Activations, the pointers to void, have the dtype of their back end
// (OpTable::activations); weights and pages carry their own. Shapes stand after each pointer;
// strides are in elements between rows.
//
// All pointers are borrowed for the call and point to memory of the back end: the host's, or the
// device's, where arrays of structures and the pointers in them are the device's too. An op of a
// device is done when its queue has got that far (ExecContext::queue).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kernels {

// A linear layer's weight in the back end's own packed layout, made once by OpTable::pack_matrix.
// y = x W^T with W as HuggingFace stores it: [out_features, in_features].
struct PackedMatrix {
  const std::byte* data = nullptr;
  int64_t out_features = 0;
  int64_t in_features = 0;
  DType dtype = DType::kBF16;  // bf16 or f32; arithmetic is fp32 either way
};

struct PackMatrixParams {
  const std::byte* source = nullptr;  // [out_features, in_features] row-major, of `dtype`
  int64_t out_features = 0;
  int64_t in_features = 0;
  DType dtype = DType::kBF16;
  std::byte* target = nullptr;  // packed_matrix_bytes(out_features, in_features, dtype), 64-aligned
};

// out[r] = table[token_ids[r]]: embeddings, or vectors that lie in memory like a table of them.
struct EmbedParams {
  const std::byte* table = nullptr;  // [vocab, dim], of `dtype` (bf16 or f32)
  DType dtype = DType::kBF16;
  int64_t vocab = 0;
  int64_t dim = 0;
  const int32_t* token_ids = nullptr;  // [rows], each in [0, vocab)
  int64_t rows = 0;
  void* out = nullptr;  // [rows, dim]
};

// out = x / rms(x) * weight over the last `dim` elements of each (row, group). Groups let one call
// normalise every head of a projection (Qwen3 q_norm and k_norm); in place when out == x.
struct RmsNormParams {
  const void* x = nullptr;  // [rows, groups, dim]
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [dim]
  float epsilon = 1e-5f;
  int64_t rows = 0;
  int64_t groups = 1;
  int64_t dim = 0;
  void* out = nullptr;  // [rows, groups, dim]
  int64_t out_stride = 0;
};

// Rows of x are normalised before they are multiplied: rms_norm over all of them.
struct InputNorm {
  const float* weight = nullptr;  // [in_features]; null: x as it is
  float epsilon = 1e-5f;
  // Room for the normalised rows, [rows, in_features]; may be x. What is there afterwards is not
  // said.
  void* normed = nullptr;
};

// The first heads of the product are rotated: rope of `out`.
struct OutputRope {
  const float* cosines = nullptr;  // [rows, half_dim]; null: no head is rotated
  const float* sines = nullptr;    // [rows, half_dim]
  int64_t heads = 0;
  int64_t half_dim = 0;
};

// out = x W^T (+ bias) (+ out when accumulate). On the host the result of a row does not depend on
// `rows`; a device's library may add up in another order for another number of rows.
//
// What belongs to a product of a transformer is part of the op, because a product of few rows on a
// device has it for nothing where each kernel of its own costs microseconds: norm of x, rotation of
// the result, gate of an MLP. Values are rounded to activations wherever the ops of those names
// would leave them. `out` is apart from x, as other rows of x may still be read.
struct MatmulParams {
  const void* x = nullptr;  // [rows, in_features]
  int64_t x_stride = 0;
  PackedMatrix weight;
  const float* bias = nullptr;  // [out_features] or null
  bool accumulate = false;
  int64_t rows = 0;
  void* out = nullptr;  // [rows, out_features]
  int64_t out_stride = 0;
  // `out` is fp32 whatever activations are made of: logits, which rounding would make ties of. Not
  // with accumulate.
  bool wide = false;
  InputNorm norm = {};
  OutputRope rope = {};  // not with accumulate or wide
  // Not null: the product is gate and up of an MLP, and out, [rows, out_features / 2], is silu_mul
  // of it. Room for the product, [rows, out_features]; what is there afterwards is not said. Not
  // with accumulate, wide or rope.
  void* gate_up = nullptr;
};

// cos/sin of positions[r] * inverse_frequencies[i], once per step for all layers.
struct RopeAnglesParams {
  const int32_t* positions = nullptr;          // [rows]
  const float* inverse_frequencies = nullptr;  // [half_dim]
  int64_t rows = 0;
  int64_t half_dim = 0;
  float* cosines = nullptr;  // [rows, half_dim]
  float* sines = nullptr;    // [rows, half_dim]
};

// Rotates pairs (i, i + half_dim) of every head in place (HuggingFace "rotate half").
struct RopeParams {
  void* x = nullptr;  // [rows, heads, 2 * half_dim]
  int64_t x_stride = 0;
  const float* cosines = nullptr;  // [rows, half_dim]
  const float* sines = nullptr;    // [rows, half_dim]
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t half_dim = 0;
};

// The rows of a packed step that belong to one sequence, and where its KV pages are.
struct SequenceRows {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  // Page ids of one KV layer in token order; token p is slot p % page_tokens of page p /
  // page_tokens.
  const int32_t* page_table = nullptr;
  // Attention only: keys outside [key_begin, key_end) are not seen, and the pages of keys before
  // key_begin are not touched.
  int32_t key_begin = 0;
  int32_t key_end = std::numeric_limits<int32_t>::max();
};

// The page pool as ops see it: page `id` starts at base + id * layout.stride_bytes().
struct DensePages {
  std::byte* base = nullptr;
  DensePageLayout layout;
};

// Writes the keys (after RoPE) and values of every row into its page slot. Of a page whose first
// slot it writes, the slots behind the sequence's last row become zero: what the page held before
// is neither shipped nor, where attention multiplies it by a weight of zero, a NaN.
struct KvWriteParams {
  const void* k = nullptr;  // [rows, kv_heads, head_dim]
  int64_t k_stride = 0;
  const void* v = nullptr;  // [rows, kv_heads, head_dim]
  int64_t v_stride = 0;
  const int32_t* positions = nullptr;       // [rows], absolute
  int64_t rows = 0;                         // of all sequences
  const SequenceRows* sequences = nullptr;  // [num_sequences], page tables of this layer
  int64_t num_sequences = 0;
  DensePages pages;
};

// Causal attention of packed query rows over paged KV: the row at position p attends to keys
// max(0, p - sliding_window + 1) .. p of its sequence (sliding_window 0: from key 0), as far as
// they are in the sequence's key range; a row that sees no key gets zeros. Keys of this step are
// already in the pages. Serves prefill chunks and decode rows alike; on the host, and on a device
// as long as a sequence has few rows, the result of a row does not depend on the other rows of the
// call; a device's library may add up in another order for another number of rows.
//
// Attention over keys in several places is merged by its log-sum-exp (lse), the natural logarithm
// of the sum of e^(scaled score) over the keys seen, -inf for none: what is there counts as one
// more key of score lse and value out.
struct PagedAttentionParams {
  const void* q = nullptr;  // [rows, heads, head_dim]
  int64_t q_stride = 0;
  const int32_t* positions = nullptr;       // [rows]
  const SequenceRows* sequences = nullptr;  // [num_sequences], page tables of this layer
  int64_t num_sequences = 0;
  DensePages pages;
  int64_t heads = 0;  // query heads; a multiple of pages.layout.kv_heads
  float scale = 0.0f;
  int32_t sliding_window = 0;
  // Bounds of what the arrays say, for a device, which reads them too late to choose a kernel by
  // them: rows of all sequences, the most of one, and the most keys that one has. 0: not known.
  int64_t rows = 0;
  int32_t max_sequence_rows = 0;
  int32_t max_keys = 0;
  // Also for a device: the rows of every sequence are at consecutive positions, and none has a key
  // range of its own, so that its keys are 0 up to the last row's position. false: not known.
  bool whole_keys = false;
  void* out = nullptr;  // [rows, heads, head_dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [rows, heads] or null: out
  bool merge = false;  // `out` and `lse` hold attention over other keys: the results are over both
};

// out = silu(gate) * up with gate = gate_up[:, :dim], up = gate_up[:, dim:].
struct SiluMulParams {
  const void* gate_up = nullptr;  // [rows, 2 * dim]
  int64_t gate_up_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  void* out = nullptr;  // [rows, dim]
  int64_t out_stride = 0;
};

// out[i] = x[row_index[i]]: survivors past the last full layer, and rows that need logits.
struct GatherRowsParams {
  const void* x = nullptr;  // [*, dim]
  int64_t x_stride = 0;
  const int32_t* row_index = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t dim = 0;
  void* out = nullptr;  // [rows, dim]
  int64_t out_stride = 0;
};

// Most tokens that top_logits lists of a row: what top-k and top-p sampling and top logprobs look
// at nearly always.
inline constexpr int32_t kMaxTopLogits = 256;

// The most likely tokens of every row of logits, and the logarithm of what all of its exponentials
// add up to: all that most draws look at, so that a device's logits need not go to the host. A NaN
// counts as -inf; tokens at -inf are not listed.
struct TopLogitsParams {
  const float* logits = nullptr;  // [rows, vocab]
  int64_t rows = 0;
  int64_t vocab = 0;  // at most 2^18 on a device
  // Tokens to list, 1 to kMaxTopLogits.
  int32_t count = 0;
  int32_t* ids = nullptr;     // [rows, count], most likely first, ties by id; -1 behind the last
  float* values = nullptr;    // [rows, count] their logits; -inf behind the last
  float* log_sums = nullptr;  // [rows]; +inf if a logit is, -inf if all are
};

// Copies whole pages of any format inside their pool, for answers that share a prompt. No page is
// both a source and a target.
struct CopyPagesParams {
  const int32_t* source = nullptr;  // [count]
  const int32_t* target = nullptr;  // [count]
  int64_t count = 0;
  std::byte* base = nullptr;  // of the pool, aligned to 64
  int64_t stride_bytes = 0;  // from one page to the next, which is what is copied: a multiple of 64
};

}  // namespace baton::kernels
