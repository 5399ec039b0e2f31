// KV format `shadowkv`: keys before RoPE as a low-rank product, landmarks to select chunks by,
// values exact or quantized, and the few exact tokens that are attended in every step (ShadowKV,
// arXiv 2410.21465, Algorithms 1 and 2).
//
// One (sequence, layer) is three blocks of contiguous memory, 64-byte aligned, without pointers or
// headers: the sizes follow from the configuration and the prompt's length.
//   Prompt section: written once by prefill, the same on the wire and in memory.
//   Tail: what decode appends; grows with the generated tokens.
//   Cache: reconstructed chunks of the previous step; may be dropped at any time.
//
// Layers whose keys are projections of one hidden state (the upper ones of SwiftKV) can share the
// coefficients of a joint factorization: the keys of all of them side by side are one low-rank
// product, each layer holds its columns of the basis, and the coefficients, of prompt and tail, are
// in blocks of their own (ShadowKvCoefficientLayout).
//
// The values of coded tokens, of prompt and tail, can be in blocks of their own too, which need not
// lie in the memory of the rest (ShadowKvConfig::values_apart).
//
// Positions count from the prompt's first token. Chunk c holds positions [c * chunk, (c + 1) *
// chunk). The prompt's first `coded` tokens, whole chunks, are coded; the rest of the prompt is its
// local window. The tail's exact tokens follow; when the exact tokens reach a limit, their oldest
// 64 become a block of coded tokens, so coded positions stay contiguous.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/core/dtype.h"

namespace baton::kernels {

// Tokens of a coded block of the tail, and of a group of int8 coefficients.
inline constexpr int64_t kShadowKvBlockTokens = 64;

// Most clusters of a head's values: a token's cluster takes one byte.
inline constexpr int32_t kShadowKvMaxClusters = 256;

// Most columns of the keys that are factored together: the Gram matrix is that wide.
inline constexpr int64_t kShadowKvMaxJointWidth = 4096;

// What a chunk's score is computed from.
enum class ShadowKvSelector : uint8_t {
  kMean,    // q . mean key (ShadowKV)
  kBounds,  // q . mean + sum |q_i| deviation_i: no q . k of the chunk is larger
  kQ2,      // largest q . k^ over the chunk's keys in 2-bit codes
};

// What becomes of generated tokens.
enum class ShadowKvGenerated : uint8_t {
  kBlocks,  // the oldest 64 exact tokens are coded once enough are exact
  kExact,   // all stay exact and are attended in every step
};

struct ShadowKvConfig {
  static constexpr uint16_t kVersion = 2;

  int32_t rank = 0;            // 1 .. kv_heads * head_dim, of a joint one times the layers
  int32_t chunk_tokens = 8;    // 1, 2, 4 or 8
  int32_t budget_tokens = 0;   // selected per step and KV head; rounded to the nearest chunk
  int32_t outlier_chunks = 0;  // per KV head
  int32_t local_chunks = 4;    // chunks at the prompt's end that stay exact
  int32_t sink_chunks = 0;     // leading chunks that are static like outliers
  ShadowKvSelector selector = ShadowKvSelector::kMean;
  ShadowKvGenerated generated = ShadowKvGenerated::kBlocks;
  // kQ2 only, 0 .. kShadowKvMaxClusters: tokens that a step does not select count with the weight
  // of their 2-bit key and the mean value of their cluster, as the estimation zone of RetroInfer
  // (arXiv 2505.02922) does; with 0 they count nothing, as in ShadowKV. Attention that is spread
  // over a whole prompt, as counting needs it, is lost without it at any small budget.
  int32_t value_clusters = 0;
  int32_t value_bits = 16;         // 8, 4, 2, or 16 for values of `dtype`
  int32_t landmark_bits = 16;      // kMean only: 8, or 16 for landmarks of `dtype`
  bool int8_coefficients = false;  // else coefficients of `dtype`
  bool joint = false;              // the coefficients are shared with other layers
  // Coded values are in blocks of their own: for a device in memory of the host, of which a step
  // reads what it selects (ShadowKV section 4.2).
  bool values_apart = false;
  DType dtype = DType::kBF16;  // of everything exact: bf16 or f32
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 8

  constexpr bool operator==(const ShadowKvConfig&) const = default;

  // Columns of the key matrix: every KV head's channels side by side.
  constexpr int64_t width() const { return int64_t{kv_heads} * head_dim; }
  constexpr int64_t budget_chunks() const {
    return (int64_t{budget_tokens} + chunk_tokens / 2) / chunk_tokens;
  }
  constexpr bool quantized_values() const { return value_bits < 16; }
  constexpr bool quantized_landmarks() const { return landmark_bits < 16; }
  // Bytes of one head's exact key or value.
  constexpr size_t vector_bytes() const {
    return static_cast<size_t>(head_dim) * DTypeBytes(dtype);
  }
  // Bytes of `bits`-wide codes of one head's key or value.
  constexpr size_t code_bytes(int32_t bits) const {
    return static_cast<size_t>(head_dim) * static_cast<size_t>(bits) / 8;
  }
  // Bytes of one head's value of a coded token, without scale and zero.
  constexpr size_t coded_value_bytes() const {
    return quantized_values() ? code_bytes(value_bits) : vector_bytes();
  }
  // Bytes of one head's landmark of a chunk, without scale and zero.
  constexpr size_t landmark_bytes() const {
    return quantized_landmarks() ? code_bytes(landmark_bits) : vector_bytes();
  }
};

// Hands out consecutive 64-byte aligned sections.
class ShadowKvSections {
 public:
  constexpr size_t Take(size_t bytes) {
    const size_t start = end_;
    end_ += (bytes + 63) / 64 * 64;
    return start;
  }
  constexpr size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

// The coefficients of some coded tokens; byte offsets from their start.
struct ShadowKvCoefficientLayout {
  size_t scales = 0;  // fp16 [groups of 64 tokens][rank]; int8 coefficients only
  size_t bytes = 0;   // before the scales: [tokens][rank] dtype or int8

  constexpr ShadowKvCoefficientLayout() = default;
  constexpr ShadowKvCoefficientLayout(const ShadowKvConfig& config, int64_t tokens) {
    const auto count = static_cast<size_t>(tokens);
    const auto rank = static_cast<size_t>(config.rank);
    ShadowKvSections sections;
    sections.Take(count * rank * (config.int8_coefficients ? 1 : DTypeBytes(config.dtype)));
    scales = sections.Take(config.int8_coefficients ? (count + 63) / 64 * rank * 2 : 0);
    bytes = sections.end();
  }
};

// Where `tokens` coded tokens are; byte offsets from the start of the coded section. Sections that
// the configuration leaves out have no bytes.
struct ShadowKvCodedLayout {
  int64_t tokens = 0;  // a multiple of the chunk
  int64_t chunks = 0;
  size_t coefficients = 0;     // ShadowKvCoefficientLayout; no bytes if they are joint
  size_t landmarks = 0;        // [kv_heads][chunks][head_dim] dtype, or codes: mean key after RoPE
  size_t landmark_scales = 0;  // fp16 [kv_heads][chunks][scale, zero]; codes only
  size_t deviations = 0;   // [kv_heads][chunks][head_dim] dtype: largest |key - mean|, rounded up
  size_t key_codes = 0;    // [kv_heads][tokens][head_dim / 4]: 2-bit keys after RoPE
  size_t key_scales = 0;   // fp16 [kv_heads][tokens][scale, zero]
  size_t cluster_ids = 0;  // uint8 [kv_heads][tokens]; clusters only
  // [kv_heads][tokens][head_dim] dtype, or codes; of values apart the offset in their block.
  size_t values = 0;
  size_t value_scales = 0;  // fp16 [kv_heads][tokens][scale, zero]; codes only
  size_t bytes = 0;
  size_t value_bytes = 0;  // of the block of values apart, else 0

  constexpr ShadowKvCodedLayout() = default;
  constexpr ShadowKvCodedLayout(const ShadowKvConfig& config, int64_t coded_tokens)
      : tokens(coded_tokens), chunks(coded_tokens / config.chunk_tokens) {
    const auto count = static_cast<size_t>(tokens);
    const auto heads = static_cast<size_t>(config.kv_heads);
    const size_t chunk_rows = heads * static_cast<size_t>(chunks);
    const size_t pair_bytes = heads * count * 4;
    const bool q2 = config.selector == ShadowKvSelector::kQ2;
    const bool bounds = config.selector == ShadowKvSelector::kBounds;
    ShadowKvSections sections;
    coefficients =
        sections.Take(config.joint ? 0 : ShadowKvCoefficientLayout(config, tokens).bytes);
    landmarks = sections.Take(q2 ? 0 : chunk_rows * config.landmark_bytes());
    landmark_scales = sections.Take(config.quantized_landmarks() ? chunk_rows * 4 : 0);
    deviations = sections.Take(bounds ? chunk_rows * config.vector_bytes() : 0);
    key_codes = sections.Take(q2 ? heads * count * config.code_bytes(2) : 0);
    key_scales = sections.Take(q2 ? pair_bytes : 0);
    cluster_ids = sections.Take(config.value_clusters > 0 ? heads * count : 0);
    ShadowKvSections apart;
    values =
        (config.values_apart ? apart : sections).Take(heads * count * config.coded_value_bytes());
    value_bytes = apart.end();
    value_scales = sections.Take(config.quantized_values() ? pair_bytes : 0);
    bytes = sections.end();
  }
};

// The prompt section of one (sequence, layer). Byte offsets from its start; padding is zero.
struct ShadowKvPromptLayout {
  ShadowKvConfig config;
  int64_t prompt_tokens = 0;
  int64_t local_tokens = 0;   // prompt tokens behind the coded ones
  int64_t static_chunks = 0;  // per KV head: sinks and outliers
  ShadowKvCodedLayout coded;
  // [rank][kv_heads * head_dim] dtype: orthonormal rows; of a joint factorization this layer's
  // columns of them.
  size_t basis = 0;
  size_t cluster_values = 0;  // [kv_heads][value_clusters][head_dim] dtype: mean values
  size_t coded_begin = 0;     // start of the coded section
  size_t static_ids = 0;      // int32 [kv_heads][static_chunks], ascending
  size_t static_keys = 0;     // [kv_heads][static_chunks][chunk][head_dim] dtype, after RoPE
  size_t static_values = 0;   // the same shape
  size_t local_keys = 0;      // [kv_heads][local_tokens][head_dim] dtype, after RoPE
  size_t local_values = 0;    // the same shape
  size_t bytes = 0;           // of the section, in memory and on the wire

  constexpr ShadowKvPromptLayout() = default;
  constexpr ShadowKvPromptLayout(const ShadowKvConfig& configuration, int64_t tokens)
      : config(configuration), prompt_tokens(tokens) {
    const int64_t whole_chunks = tokens / config.chunk_tokens - config.local_chunks;
    coded = ShadowKvCodedLayout(config, std::max<int64_t>(0, whole_chunks) * config.chunk_tokens);
    local_tokens = tokens - coded.tokens;
    static_chunks =
        std::min<int64_t>(coded.chunks, int64_t{config.sink_chunks} + config.outlier_chunks);
    const auto heads = static_cast<size_t>(config.kv_heads);
    const size_t static_vectors =
        heads * static_cast<size_t>(static_chunks) * static_cast<size_t>(config.chunk_tokens);
    const size_t local_vectors = heads * static_cast<size_t>(local_tokens);
    ShadowKvSections sections;
    basis = sections.Take(static_cast<size_t>(config.rank) * heads * config.vector_bytes());
    cluster_values =
        sections.Take(heads * static_cast<size_t>(config.value_clusters) * config.vector_bytes());
    coded_begin = sections.Take(coded.bytes);
    static_ids = sections.Take(heads * static_cast<size_t>(static_chunks) * sizeof(int32_t));
    static_keys = sections.Take(static_vectors * config.vector_bytes());
    static_values = sections.Take(static_vectors * config.vector_bytes());
    local_keys = sections.Take(local_vectors * config.vector_bytes());
    local_values = sections.Take(local_vectors * config.vector_bytes());
    bytes = sections.end();
  }

  constexpr int64_t coded_tokens() const { return coded.tokens; }
  // True when selection would attend the whole prompt: the sequence is better kept in pages of
  // format `dense`.
  constexpr bool prefers_dense() const {
    return coded.chunks == 0 || config.budget_chunks() * config.chunk_tokens +
                                        static_chunks * config.chunk_tokens + local_tokens >=
                                    prompt_tokens;
  }
};

// The tail of one (sequence, layer), and what is where once the sequence holds a number of tokens.
// A tail with room for more tokens begins with the same bytes, so a tail grows by copying.
struct ShadowKvTailLayout {
  ShadowKvConfig config;
  int64_t prompt_tokens = 0;
  int64_t prompt_coded_tokens = 0;
  int64_t exact_limit = 0;    // kBlocks: exact tokens at which the oldest 64 are coded
  int64_t exact_slots = 0;    // at offset 0: [exact_slots][key, value][kv_heads][head_dim] dtype
  size_t blocks = 0;          // offset of the first coded block
  int64_t block_count = 0;    // blocks that fit
  ShadowKvCodedLayout block;  // 64 tokens
  size_t bytes = 0;

  constexpr ShadowKvTailLayout() = default;
  // Room for max_generated tokens behind the prompt.
  constexpr ShadowKvTailLayout(const ShadowKvPromptLayout& prompt, int64_t max_generated)
      : config(prompt.config),
        prompt_tokens(prompt.prompt_tokens),
        prompt_coded_tokens(prompt.coded.tokens),
        block(prompt.config, kShadowKvBlockTokens) {
    const int64_t window = int64_t{config.local_chunks} * config.chunk_tokens;
    const int64_t window_blocks =
        std::max<int64_t>(1, (window + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens);
    exact_limit = (window_blocks + 1) * kShadowKvBlockTokens;
    const bool in_blocks = config.generated == ShadowKvGenerated::kBlocks;
    exact_slots = in_blocks ? exact_limit : max_generated;
    block_count = BlocksAt(prompt_tokens + max_generated);
    blocks = (static_cast<size_t>(exact_slots) * slot_bytes() + 63) / 64 * 64;
    bytes = blocks + static_cast<size_t>(block_count) * block.bytes;
  }

  // Coded blocks once the sequence holds `tokens` tokens.
  constexpr int64_t BlocksAt(int64_t tokens) const {
    const int64_t behind = tokens - prompt_coded_tokens;
    if (config.generated == ShadowKvGenerated::kExact || behind < exact_limit) {
      return 0;
    }
    return (behind - exact_limit) / kShadowKvBlockTokens + 1;
  }
  // The block that is coded once the token of `position` is stored; nothing for most positions.
  constexpr std::optional<int64_t> BlockDueAt(int64_t position) const {
    const int64_t next = BlocksAt(position);
    return BlocksAt(position + 1) > next ? std::optional(next) : std::nullopt;
  }
  // Of the positions [first, end), the end of those that one call may append: behind the first that
  // makes a block due, or kShadowKvBlockTokens of them.
  constexpr int64_t EndOfAppend(int64_t first, int64_t end) const {
    const int64_t most = std::min(end, first + kShadowKvBlockTokens);
    for (int64_t position = first; position < most; ++position) {
      if (BlockDueAt(position).has_value()) {
        return position + 1;
      }
    }
    return most;
  }
  // Coded tokens of prompt and tail; positions from here on are exact.
  constexpr int64_t CodedTokensAt(int64_t tokens) const {
    return prompt_coded_tokens + BlocksAt(tokens) * kShadowKvBlockTokens;
  }
  constexpr size_t slot_bytes() const {
    return 2 * static_cast<size_t>(config.kv_heads) * config.vector_bytes();
  }
  // Byte offset of a generated token's exact key; its value is slot_bytes() / 2 behind.
  constexpr size_t exact_key(int64_t position, int64_t head) const {
    const int64_t slot = config.generated == ShadowKvGenerated::kExact
                             ? position - prompt_tokens
                             : (position - prompt_coded_tokens) % exact_slots;
    return static_cast<size_t>(slot) * slot_bytes() +
           static_cast<size_t>(head) * config.vector_bytes();
  }
  constexpr size_t exact_value(int64_t position, int64_t head) const {
    return exact_key(position, head) + slot_bytes() / 2;
  }
  constexpr size_t block_begin(int64_t index) const {
    return blocks + static_cast<size_t>(index) * block.bytes;
  }
  // Of a joint factorization, the coefficients of a coded block in the block of memory that the
  // layers share.
  constexpr size_t joint_block_begin(int64_t index) const {
    return static_cast<size_t>(index) *
           ShadowKvCoefficientLayout(config, kShadowKvBlockTokens).bytes;
  }
  // Of values apart, those of a coded block in the block of memory that has them all.
  constexpr size_t value_block_begin(int64_t index) const {
    return static_cast<size_t>(index) * block.value_bytes;
  }
  // Bytes that have been written once `generated` tokens are behind the prompt: the slots of exact
  // tokens, those that wait to be written again included, and the coded blocks, with values apart.
  constexpr size_t WrittenBytes(int64_t generated) const {
    return static_cast<size_t>(std::min(generated, exact_slots)) * slot_bytes() +
           static_cast<size_t>(BlocksAt(prompt_tokens + generated)) *
               (block.bytes + block.value_bytes);
  }
};

// Chunks that one step selects per KV head once the sequence holds `tokens` tokens: the budget, or
// every selectable chunk (coded and not static) if those are fewer.
constexpr int64_t ShadowKvSelectedChunks(const ShadowKvPromptLayout& prompt, int64_t tokens) {
  const ShadowKvTailLayout tail(prompt, 0);
  const int64_t selectable =
      tail.CodedTokensAt(tokens) / prompt.config.chunk_tokens - prompt.static_chunks;
  return std::min(prompt.config.budget_chunks(), selectable);
}

// What caches hold of values.
enum class ShadowKvCachedValues : uint8_t {
  kDequantized,  // those that are quantized or apart, as elements of the configuration's dtype
  kStored,       // those that are apart, as they are stored
};

// Reconstructed keys, and some values, of the chunks that the previous step selected. Ids all zero:
// nothing is cached, and the other bytes may be any. Else entry e of a head's table says that chunk
// ids[e] - 1 lies in slot slots[e]; ids ascend over the entries in use, zeros follow, and slots[]
// is a permutation of all slots.
struct ShadowKvCacheLayout {
  int64_t slots_per_head = 0;  // the budget in chunks
  size_t ids = 0;              // int32 [kv_heads][slots], up to `slots`
  size_t slots = 0;            // int32 [kv_heads][slots]
  size_t keys = 0;             // [kv_heads][slots][chunk][head_dim] dtype, after RoPE
  size_t values = 0;           // [kv_heads][slots][chunk] values
  size_t bytes = 0;

  constexpr ShadowKvCacheLayout() = default;
  constexpr ShadowKvCacheLayout(const ShadowKvConfig& config, ShadowKvCachedValues cached_values)
      : slots_per_head(config.budget_chunks()) {
    const size_t entries =
        static_cast<size_t>(config.kv_heads) * static_cast<size_t>(slots_per_head);
    const size_t vectors = entries * static_cast<size_t>(config.chunk_tokens);
    const bool stored = cached_values == ShadowKvCachedValues::kStored;
    const bool keeps_values = config.values_apart || (config.quantized_values() && !stored);
    const size_t value_bytes = stored ? config.coded_value_bytes() : config.vector_bytes();
    ShadowKvSections sections;
    ids = sections.Take(entries * sizeof(int32_t));
    slots = sections.Take(entries * sizeof(int32_t));
    keys = sections.Take(vectors * config.vector_bytes());
    values = sections.Take(keeps_values ? vectors * value_bytes : 0);
    bytes = sections.end();
  }
};

}  // namespace baton::kernels
