// Parameters of the ops of KV format `diffkv`. All pointers are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/round_up.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

// The pool as these ops see it: page `id` starts at base + id * geometry.page_bytes().
struct DiffKvPages {
  std::byte* base = nullptr;
  DiffKvGeometry geometry;
};

// One sequence's pages of one stored KV layer. The page table is bidirectional (DiffKV
// section 5.2): high page k of a head is column k, low page k is column columns - 1 - k. Pages held
// follow from the counts: pages_for(tier, count).
struct DiffKvLayer {
  int32_t* page_table = nullptr;    // [kv_heads][columns]
  int32_t* token_counts = nullptr;  // [kv_heads][kDiffKvTiers]
  int32_t columns = 0;
};

// Ids of free pages that the sequence may take, in order; no other sequence uses them. Ops
// take from `used` on and advance it; a scan over (head, tier) decides which head gets which id, so
// ids are reproducible.
struct DiffKvLease {
  const int32_t* ids = nullptr;
  int32_t count = 0;
  int32_t used = 0;
};

// Queries that a prompt token's score averages over.
enum class DiffKvScoring : uint8_t {
  kLastWindow,  // the last kDiffKvWindowQueries prompt queries, the token's own included
  kAllLater,    // all later prompt tokens (DiffKV section 4)
};
inline constexpr int32_t kDiffKvWindowQueries = 64;

// The threshold of a prompt token is alpha / N, or alpha / i for the i-th token (from 1).
enum class DiffKvBase : uint8_t { kLength, kIndex };

// How generation re-classifies: the released code's decision table, or Algorithm 1 of the paper.
enum class DiffKvRule : uint8_t { kRelease, kPaper };

// Which token gets which precision. A sequence that is extended has the policy of its prompt, with
// N the new length.
struct DiffKvPolicy {
  float alpha_high = 1.0f;  // mean score >= alpha_high x base: high
  float alpha_low = 0.0f;   // mean score < alpha_low x base: pruned; else low
  DiffKvScoring scoring = DiffKvScoring::kLastWindow;
  DiffKvBase base = DiffKvBase::kLength;
  DiffKvRule rule = DiffKvRule::kRelease;
  int32_t window = 64;  // newest tokens that stay high; at most kDiffKvWindowQueries
  int32_t sinks = 0;    // first tokens that stay high
  // Positions whose queries scored nothing: those of the prompt, and of each extension, before its
  // last kDiffKvWindowQueries; of generated tokens all but every r-th, where only those score.
  // [unobserved_count], ascending, apart from each other.
  const UnobservedRange* unobserved = nullptr;
  int32_t unobserved_count = 0;
};

// probabilities[row][kv_head][i] = the largest softmax probability that a query head of the KV head
// gives token key_begin + i (0 for tokens that the row doesn't see); with `combine` the larger of
// that and what is there (the layers of an AcrossKV group). Keys before key_begin are not in the
// pages: `lse`, the log-sum-exp over all keys (paged_attention), tells what they weigh.
struct AttentionProbabilitiesParams {
  const void* q = nullptr;  // [rows, heads, head_dim]
  int64_t q_stride = 0;
  const int32_t* positions = nullptr;  // [rows], from key_begin on
  int64_t rows = 0;
  const int32_t* page_table = nullptr;  // of one sequence in one layer
  int32_t key_begin = 0;
  const float* lse = nullptr;  // [rows, heads], or null: keys from key_begin on are all there are
  DensePages pages;
  int64_t heads = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;
  bool combine = false;
  float* probabilities = nullptr;  // [rows][kv_heads][probability_stride]
  int64_t probability_stride = 0;  // at least the largest position + 1 - key_begin
};

// scores[kv_head][i] += sum over rows, in order, of probabilities[row][kv_head][i], for token
// first_token + i; without `own` a row's own token gets nothing from it.
struct AccumulateScoresParams {
  const float* probabilities = nullptr;  // [rows][kv_heads][probability_stride]
  int64_t probability_stride = 0;
  const int32_t* positions = nullptr;  // [rows], from first_token on
  int64_t rows = 0;
  int32_t first_token = 0;
  int64_t kv_heads = 0;
  bool own = true;
  float* scores = nullptr;  // [kv_heads][score_stride]
  int64_t score_stride = 0;
};

enum class DiffKvClass : uint8_t { kHigh = 0, kLow = 1, kPruned = 2 };

// Classifies the tokens [first_token, tokens) of a prompt by their score sums.
struct DiffKvClassifyParams {
  const float* scores = nullptr;  // [kv_heads][score_stride], from first_token on
  int64_t score_stride = 0;
  int64_t first_token = 0;  // tokens before it are stored already
  int64_t tokens = 0;       // N
  int64_t kv_heads = 0;
  DiffKvPolicy policy = {};
  // [kv_heads][kDiffKvTiers]: tokens stored already, which the counts are to include; null: none.
  const int32_t* held = nullptr;
  DiffKvClass* classes = nullptr;   // [kv_heads][tokens - first_token]
  int32_t* token_counts = nullptr;  // out [kv_heads][kDiffKvTiers]: held and classified
};

// Gives every head the pages that its counts need: an exclusive sum over (head, tier), high before
// low, decides the ids. kResourceExhausted, and nothing changed, when the lease is too short.
struct DiffKvAssignPagesParams {
  DiffKvGeometry geometry;
  DiffKvLayer layer;  // counts are read, the table is written
  // [kv_heads][kDiffKvTiers]: tokens whose pages the table has already, at most the layer's; null:
  // none.
  const int32_t* held = nullptr;
  DiffKvLease* lease = nullptr;
};

// The inverse: writes the ids of all pages held to `ids` in the same order and clears the counts.
struct DiffKvReleasePagesParams {
  DiffKvGeometry geometry;
  DiffKvLayer layer;
  int32_t* ids = nullptr;    // room for all of them
  int32_t* count = nullptr;  // out: how many
};

// Quantizes the tokens [first_token, tokens) of a prompt from dense pages into the pages that
// DiffKvAssignPages gave, tokens of a class in position order behind those held, with score sums
// and true positions. Writes whole new pages: unused slots are zero; of a page that holds tokens,
// nothing but new slots changes.
struct DiffKvEncodeParams {
  DensePages source;                      // pages from first_token on are read
  const int32_t* source_table = nullptr;  // of this layer
  int64_t first_token = 0;
  int64_t tokens = 0;
  const DiffKvClass* classes = nullptr;  // [kv_heads][tokens - first_token]
  const float* scores = nullptr;         // [kv_heads][score_stride], from first_token on
  int64_t score_stride = 0;
  const int32_t* held = nullptr;  // [kv_heads][kDiffKvTiers] tokens stored before; null: none
  DiffKvLayer layer;              // counts of held and new tokens
  DiffKvPages pages;
};

// What a new token does to one head; slots count tokens of their tier. diffkv_sweep decides, or
// diffkv_take_pages where none sweeps, which also finds the pages; diffkv_append does it.
struct DiffKvAction {
  int32_t high_slot = -1;   // where the new token goes (overwritten victim or appended)
  int32_t demoted_to = -1;  // low slot that the victim goes to; -1: no demotion
  int32_t pages[kDiffKvTiers] = {-1, -1};  // ids of these slots' pages
  bool appended = false;                   // the high count grows by one
  bool low_appended = false;               // the low count grows by one

  friend bool operator==(const DiffKvAction&, const DiffKvAction&) = default;
};

// A new token of one sequence in one layer.
struct DiffKvAppendRow {
  DiffKvLayer layer;
  DiffKvPolicy policy = {};
  int32_t row = 0;  // of the keys and values
  int32_t position = 0;
  bool sweep = true;  // false: append without looking for a victim (policy every r-th step)
  DiffKvLease* lease = nullptr;  // gives a page only where a token finds its tier's last one full
  DiffKvAction* actions = nullptr;  // [kv_heads]
};

// Runs the generation policy: what rows that sweep will do with their new tokens, by the scores of
// the tokens stored. Rows are of different (sequence, layer)s, all of a step's layers at once if
// wanted; the actions of those that do not sweep stay as they are. Thresholds are alpha / position.
// No keys, values, leases and rows of keys are looked at.
struct DiffKvSweepParams {
  const DiffKvAppendRow* rows = nullptr;
  int64_t num_rows = 0;
  DiffKvPages pages;
};

// The page manager of generation (DiffKV section 5.2): gives every new token of a step its slots'
// pages, and counts it. Rows are [layers][sequences]; those of a sequence have one lease, from
// which layers take in order, and of a layer (head, tier), high before low. New pages are zeroed.
// Rows that sweep have had diffkv_sweep, and their layers have not changed since; the others'
// tokens go behind the high tokens of every head. Keys and values are not looked at.
// kResourceExhausted, and nothing changed but actions, when a lease is too short or a page table
// has no column left.
struct DiffKvTakePagesParams {
  const DiffKvAppendRow* rows = nullptr;
  int64_t layers = 0;
  int64_t sequences = 0;
  DiffKvPages pages;
};

// Writes the new tokens into the slots that diffkv_take_pages gave them, moving what lies there
// where that is demoted, before that layer's attention. Rows are of different sequences.
struct DiffKvAppendParams {
  const void* k = nullptr;  // [..., kv_heads x head_dim], after RoPE
  const void* v = nullptr;
  int64_t stride = 0;  // elements from row to row, the same for both
  const DiffKvAppendRow* rows = nullptr;
  int64_t num_rows = 0;
  DiffKvPages pages;
};

// One query row over a sequence's quantized tokens.
struct DiffKvAttentionRow {
  DiffKvLayer layer;
  int32_t row = 0;  // of the queries and of the results
  int32_t position = 0;
  // [heads] or null. Set: `out` holds attention over other keys and this its log-sum-exp
  // (paged_attention), -inf for none; the row's results, its probabilities too, are over both.
  float* lse = nullptr;
  // Scratch [kv_heads][probability_stride]: the largest probability per stored token, high slots
  // first, then low slots from the high count on. Null: the query scores nothing.
  float* probabilities = nullptr;
  int64_t probability_stride = 0;  // at least the stored tokens of any head
  // Where the row's DiffKvScratchFloats(geometry, heads, probability_stride) floats of the call's
  // scratch begin; a multiple of kDiffKvScratchUnit.
  int64_t scratch_begin = 0;
};

// A head's pages are worked on in runs of this many (high pages, then low pages), whatever the
// number of threads: one long sequence keeps all threads busy, and results do not depend on them.
inline constexpr int32_t kDiffKvSplitPages = 16;

// Floats that a back end may read at once: 16 bytes.
inline constexpr int64_t kDiffKvScratchUnit = 4;
// Floats of DiffKvAttentionParams::scratch for a row whose sequence stores at most `tokens` tokens
// a head: scores and partial results, as the host keeps them; a device's weights take less. A
// multiple of kDiffKvScratchUnit.
constexpr int64_t DiffKvScratchFloats(const DiffKvGeometry& geometry,
                                      int64_t heads,
                                      int64_t tokens) {
  const int64_t splits = (geometry.columns_for(tokens) + kDiffKvSplitPages - 1) / kDiffKvSplitPages;
  return RoundUp(heads * (tokens + splits * (geometry.head_dim + 2)), kDiffKvScratchUnit);
}

// Attention of one query per sequence over both tiers; rows that score nothing may be of the same
// sequence. Scores (DiffKV section 4: attention mass,
// per query the largest of the KV head's query heads): the first layer that reads the cache sets
// `probabilities`, the others of its AcrossKV group take the maximum, the last adds them to the
// scores in the pages. A cache with one layer is first and last.
struct DiffKvAttentionParams {
  const void* q = nullptr;  // [..., heads x head_dim]
  int64_t q_stride = 0;     // elements from row to row
  void* out = nullptr;      // [..., heads x head_dim]
  int64_t out_stride = 0;
  // Contents do not survive the call: scores before the softmax is known, and partial sums.
  float* scratch = nullptr;
  const DiffKvAttentionRow* rows = nullptr;
  int64_t num_rows = 0;
  DiffKvPages pages;
  int64_t heads = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;  // by stored position; 0: none
  bool first = true;
  bool last = true;
  // False: no row has probabilities, and a device launches no work for them.
  bool scored = true;
};

}  // namespace baton::kernels
