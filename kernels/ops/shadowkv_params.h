// Parameters of the ops over KV format `shadowkv` (kernels/kv_format/shadowkv.h). All pointers are
// borrowed for the call; workspace comes from ExecContext::workspace, at least
// OpTable::shadowkv_workspace_bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

// cos/sin of every position in use, as rope_angles writes them for positions 0, 1, 2, ... One table
// serves all layers and sequences of a model.
struct ShadowKvRope {
  const float* cosines = nullptr;  // [positions, head_dim / 2]
  const float* sines = nullptr;    // [positions, head_dim / 2]
  int64_t positions = 0;
};

// Sizes that bound the workspace of every shadowkv op.
struct ShadowKvWorkspaceSizes {
  ShadowKvConfig config;   // the largest rank and budget in use
  int64_t heads = 0;       // query heads
  int64_t max_tokens = 0;  // of a sequence, prompt and generated
  int64_t layers = 1;      // that are factored together
  // That are factored at the same time; 0: by other ops.
  int64_t factored = 1;
  // For a device: sequences that a decode step takes at once. With less workspace it takes several
  // launches, one with room for a single sequence at least.
  int64_t sequences = 1;
};

// Codes a prompt that lies in dense pages, keys after RoPE, into a prompt section. Keys are
// un-rotated, freed of key_bias and factored over all KV heads at once (ShadowKV section 4.1):
// key = RoPE(coefficients x basis + key_bias). For models that normalise keys per head (Qwen3) the
// factored key is the normalised one. Rows of the basis come in the order of falling energy, each
// with its largest element positive. Value clusters: kernels/ops/shadowkv_clusters.h.
// With joint coefficients all the rest is coded; shadowkv_encode_joint writes the basis, before or
// after.
struct ShadowKvEncodeParams {
  ShadowKvPromptLayout layout;
  DensePages pages;                     // layout.config's kv_heads, head_dim and dtype
  const int32_t* page_table = nullptr;  // of this layer, layout.prompt_tokens tokens
  ShadowKvRope rope;                    // at least prompt_tokens positions
  const float* key_bias = nullptr;      // [kv_heads * head_dim] before RoPE, or null
  std::byte* prompt = nullptr;          // layout.bytes, 64-aligned; every byte is written, but for
                                        // the basis of a joint factorization
  // Of values apart: their block, layout.coded.value_bytes, 64-aligned, else null. A device writes
  // to memory of the host just so (MemorySpace::staging). Padding is left as it is.
  std::byte* values = nullptr;
  // Basis and coefficients are left alone: shadowkv_factor_layers writes them, before or after.
  bool factored = false;
};

// One of the layers whose keys are factored together.
struct ShadowKvJointLayer {
  const int32_t* page_table = nullptr;  // layout.prompt_tokens tokens
  const float* key_bias = nullptr;      // [kv_heads * head_dim] before RoPE, or null
  std::byte* prompt = nullptr;          // the layer's prompt section; only factors are written
  // For layers that are factored at the same time: OpTable::shadowkv_gram_numbers of them,
  // 64-aligned, or null.
  double* gram = nullptr;
};

// The most layers of a shadowkv_add_grams and a shadowkv_factor_layers.
inline constexpr int64_t kShadowKvMostFactored = 8;

// Adds the tokens [token_begin, token_end) of some layers to what shadowkv_factor_layers starts
// from: sums over tokens of k k^T, keys un-rotated and freed of their bias, laid out as the back
// end likes. The tokens before them were added by earlier calls, of any length.
struct ShadowKvAddGramsParams {
  ShadowKvConfig config;  // of every layer, not joint
  DensePages pages;       // config's kv_heads, head_dim and dtype
  std::array<ShadowKvJointLayer, kShadowKvMostFactored> layers = {};  // prompt may be null
  int64_t num_layers = 0;                                             // of them
  int64_t token_begin = 0;  // 0: sums begin anew, whatever is there
  int64_t token_end = 0;
  ShadowKvRope rope;  // at least token_end positions
};

// The bases and coefficients that shadowkv_encode would write of some layers, each with factors of
// its own, found at the same time: for a device that takes about as long for several layers as for
// one. The rest of their sections is left alone. Which tokens came by shadowkv_add_grams is in the
// rounding of sums, fp32 over some thousand tokens, and so in what depends on it.
struct ShadowKvFactorLayersParams {
  ShadowKvPromptLayout layout;  // of every layer, not joint, of at most shadowkv_factored_rank
  DensePages pages;             // layout.config's kv_heads, head_dim and dtype
  std::array<ShadowKvJointLayer, kShadowKvMostFactored> layers = {};
  int64_t num_layers = 0;  // of them
  // Of so many first tokens, not all, every layer's `gram` has the sums; 0: there are none.
  int64_t gram_tokens = 0;
  ShadowKvRope rope;  // at least prompt_tokens positions
};

// Factors the keys of several layers, side by side, as shadowkv_encode does those of one:
// [K_1 ... K_n] = Z [B_1 ... B_n], the best approximation of that rank (Eckart and Young). Where
// K_j = H W_j, the upper layers of SwiftKV, Z and B_j are those of the joint code of shadowkv.md
// 7.3, because [K_1 ... K_n] [K_1 ... K_n]^T = H G H^T. Keys of models that normalise them per head
// are no products of H; they are factored all the same.
struct ShadowKvEncodeJointParams {
  ShadowKvPromptLayout layout;                 // of every layer, joint
  DensePages pages;                            // layout.config's kv_heads, head_dim and dtype
  const ShadowKvJointLayer* layers = nullptr;  // [num_layers]
  // Times kv_heads * head_dim: at least the rank, at most kShadowKvMaxJointWidth.
  int64_t num_layers = 0;
  ShadowKvRope rope;  // at least prompt_tokens positions
  // Z: ShadowKvCoefficientLayout(config, layout.coded.tokens).bytes, 64-aligned; every byte is
  // written.
  std::byte* coefficients = nullptr;
};

// What shadowkv_attention did for one sequence, summed over its KV heads.
struct ShadowKvCounters {
  int64_t hits = 0;             // selected chunks found in the cache
  int64_t misses = 0;           // selected chunks reconstructed
  int64_t attended_tokens = 0;  // static, exact and selected, and one per value cluster
};

// One sequence of a decode step in one layer. `position` is the index of its newest token: the
// sequence holds position + 1 tokens once shadowkv_append ran. In a decode step that is the query
// row's token; a query whose own and other newest keys are elsewhere (ShadowKvAttentionParams::lse)
// has the newest token held, which may be the prompt's last. Sequences of one call share dtype,
// kv_heads and head_dim; all else may differ. They may be the same one, to select and attend if
// they have neither cache nor counters, to append as ShadowKvAppendParams says.
struct ShadowKvSequence {
  const ShadowKvPromptLayout* layout = nullptr;
  const std::byte* prompt = nullptr;  // layout->bytes
  std::byte* tail = nullptr;          // ShadowKvTailLayout(*layout, max_generated).bytes
  int64_t max_generated = 0;
  int32_t position = 0;  // >= layout->prompt_tokens; to select or with lse: by one less
  int32_t row = 0;       // of keys, values, queries, results and lse
  // ShadowKvCacheLayout(layout->config, OpTable::shadowkv_cached_values).bytes, or null to
  // reconstruct every selected chunk. One per layer, or one for all layers that share this
  // sequence's KV: results do not depend on it.
  std::byte* cache = nullptr;
  // With joint coefficients, those of the prompt and those of the tail's blocks, from
  // ShadowKvTailLayout::joint_block_begin; else null.
  const std::byte* joint_prompt = nullptr;
  std::byte* joint_tail = nullptr;
  // With values apart, their blocks of the prompt and of the tail, from
  // ShadowKvTailLayout::value_block_begin; else null. On a device in its own memory or, pinned, in
  // the host's.
  const std::byte* value_prompt = nullptr;
  std::byte* value_tail = nullptr;
  ShadowKvCounters* counters = nullptr;  // that attention adds to; may be null
};

// The rank of a configuration whose keys a device reconstructs chunk by chunk, which is faster; 0
// for others.
inline constexpr int32_t kShadowKvChunkKeyTokens = 8;
inline constexpr int32_t kShadowKvChunkKeyDim = 128;
inline int32_t ShadowKvChunkKeyRank(const ShadowKvConfig& config) {
  const bool shape = config.chunk_tokens == kShadowKvChunkKeyTokens &&
                     config.head_dim == kShadowKvChunkKeyDim && !config.int8_coefficients;
  const bool rank = config.rank == 64 || config.rank == 128 || config.rank == 160;
  return shape && rank ? config.rank : 0;
}

// What a device has to know of a call's sequences beforehand: it reads them too late to choose and
// to size its work by them. 0: not known. Hosts look at the sequences instead. A sequence past a
// bound gets wrong results.
struct ShadowKvBounds {
  // Of every sequence.
  DType dtype = DType::kBF16;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  // Of any sequence. Coded chunks, at least 1.
  int64_t max_chunks = 0;
  // budget_chunks() x chunk_tokens.
  int64_t max_budget_tokens = 0;
  // Static and exact tokens of a KV head: how many blocks share its work, no result.
  int64_t max_exact_tokens = 0;
  // Every sequence has a cache, so that keys need no place in the workspace.
  bool cached = false;
  // Caches keep the values of selected chunks that are apart: those of misses come while keys are
  // reconstructed, those of hits are there. Without, attention reads them where they lie. The same
  // in all steps of a sequence.
  bool caches_values = false;
  // ShadowKvChunkKeyRank of every sequence; 0 also where they differ.
  int32_t chunk_key_rank = 0;
};

// Writes the key (after RoPE) and value of its row to each sequence; codes the oldest 64 exact
// tokens when they are due. Every position must be appended, in order, exactly once. A call may
// have up to 64 consecutive positions of one sequence, of which only the last makes tokens due:
// those of the call are neither among the due ones nor where these are read.
struct ShadowKvAppendParams {
  const void* k = nullptr;  // [..., kv_heads, head_dim]
  int64_t k_stride = 0;     // elements from row to row
  const void* v = nullptr;  // [..., kv_heads, head_dim]
  int64_t v_stride = 0;
  const ShadowKvSequence* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  ShadowKvRope rope;                // past every sequence's position
  const float* key_bias = nullptr;  // [kv_heads * head_dim] or null
};

// Codes the joint coefficients of the oldest 64 exact tokens of one sequence when they are due:
// once shadowkv_append ran for the newest token in all the layers, before any of them attends.
struct ShadowKvAppendJointParams {
  const ShadowKvSequence* layers = nullptr;  // [num_layers]: the sequence in every layer
  const float* const* key_bias = nullptr;    // [num_layers], each [kv_heads * head_dim] or null
  int64_t num_layers = 0;
  ShadowKvRope rope;  // past the sequence's position
};

// Chooses the chunks of the step for each sequence and KV head: those with the largest
// max over query heads g of (logit_g - logsumexp(logit_g)) over the selectable chunks, where
// logit_g is scale times the chunk's score under query head g (ShadowKV Algorithm 2); ties go to
// the lower id. Ids ascend; -1 follows the last.
// Of sequences with value clusters, cluster_logits gets log(sum exp(logit)) over each cluster's
// coded tokens that are neither static nor selected, -inf if there are none; elements behind a
// sequence's last cluster are -inf too.
struct ShadowKvSelectParams {
  const void* q = nullptr;                      // [..., heads, head_dim]
  int64_t q_stride = 0;                         // elements from row to row
  const ShadowKvSequence* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  int64_t heads = 0;  // a multiple of kv_heads
  float scale = 0.0f;
  int32_t* chunk_ids = nullptr;     // [num_sequences, kv_heads, chunk_ids_stride]
  int64_t chunk_ids_stride = 0;     // at least every sequence's budget in chunks
  float* cluster_logits = nullptr;  // [num_sequences, heads, cluster_stride]; null without clusters
  int64_t cluster_stride = 0;       // at least every sequence's value_clusters
  ShadowKvBounds bounds = {};       // for a device: down to max_chunks
};

// Attention of one query row per sequence over the static chunks, the exact tokens and the selected
// chunks, whose keys are reconstructed and whose values are dequantized, both rounded to the
// configuration's dtype. A value cluster takes part like one more token: its logit is that of
// cluster_logits, its value the cluster's mean.
struct ShadowKvAttentionParams {
  const void* q = nullptr;                      // [..., heads, head_dim]
  int64_t q_stride = 0;                         // elements from row to row
  const ShadowKvSequence* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  int64_t heads = 0;  // a multiple of kv_heads
  float scale = 0.0f;
  const int32_t* chunk_ids = nullptr;  // as shadowkv_select wrote them
  int64_t chunk_ids_stride = 0;
  const float* cluster_logits = nullptr;  // as shadowkv_select wrote them
  int64_t cluster_stride = 0;
  ShadowKvRope rope;                // past every selected chunk
  const float* key_bias = nullptr;  // [kv_heads * head_dim] or null
  void* out = nullptr;              // [..., heads, head_dim]
  int64_t out_stride = 0;
  // [..., heads] or null, by row. Set: `out` holds attention over other keys and this its
  // log-sum-exp (paged_attention), -inf for none; the results are over both.
  float* lse = nullptr;
  ShadowKvBounds bounds = {};  // for a device: all but max_chunks
};

}  // namespace baton::kernels
