// Addresses inside one sequence's prompt section and tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {

// A chunk inside its coded section.
struct ShadowKvChunk {
  ShadowKvCodedView section;
  int64_t chunk;  // counted from the section's first
};

// One sequence once its token at `position` is stored. Borrows the sequence and its layout.
class ShadowKvSequenceView {
 public:
  explicit ShadowKvSequenceView(const ShadowKvSequence& sequence)
      : sequence_(sequence),
        tail_(*sequence.layout, sequence.max_generated),
        blocks_(tail_.BlocksAt(int64_t{sequence.position} + 1)) {}

  const ShadowKvPromptLayout& layout() const { return *sequence_.layout; }
  const ShadowKvConfig& config() const { return sequence_.layout->config; }
  const ShadowKvTailLayout& tail() const { return tail_; }
  const std::byte* basis() const { return sequence_.prompt + layout().basis; }
  int64_t tokens() const { return int64_t{sequence_.position} + 1; }
  // Positions [first_exact(), tokens()) are exact.
  int64_t first_exact() const { return tail_.CodedTokensAt(tokens()); }

  // Coded sections: the prompt's, then the tail's blocks.
  int64_t sections() const { return 1 + blocks_; }
  ShadowKvCodedView Section(int64_t index) const {
    if (index == 0) {
      return {config(),
              layout().coded,
              sequence_.prompt + layout().coded_begin,
              sequence_.joint_prompt,
              sequence_.value_prompt};
    }
    const std::byte* joint =
        config().joint ? sequence_.joint_tail + tail_.joint_block_begin(index - 1) : nullptr;
    const std::byte* values =
        config().values_apart ? sequence_.value_tail + tail_.value_block_begin(index - 1) : nullptr;
    return {config(), tail_.block, sequence_.tail + tail_.block_begin(index - 1), joint, values};
  }
  // The first chunk of a section.
  int64_t SectionChunk(int64_t index) const {
    return index == 0 ? 0 : layout().coded.chunks + (index - 1) * tail_.block.chunks;
  }
  int64_t chunks() const { return SectionChunk(sections()); }
  ShadowKvChunk Chunk(int64_t id) const {
    if (id < layout().coded.chunks) {
      return {Section(0), id};
    }
    const int64_t behind = id - layout().coded.chunks;
    return {Section(1 + behind / tail_.block.chunks), behind % tail_.block.chunks};
  }

  // Mean values of a head's clusters, [value_clusters][head_dim].
  const std::byte* ClusterValues(int64_t head) const {
    return sequence_.prompt + layout().cluster_values +
           static_cast<size_t>(head * config().value_clusters) * config().vector_bytes();
  }
  // Static chunks of a head: their ids, and the exact keys and values of token `index` in
  // [0, static_chunks * chunk_tokens).
  const int32_t* StaticIds(int64_t head) const {
    return reinterpret_cast<const int32_t*>(sequence_.prompt + layout().static_ids) +
           head * layout().static_chunks;
  }
  const std::byte* StaticKey(int64_t head, int64_t index) const {
    return sequence_.prompt + layout().static_keys + StaticOffset(head, index);
  }
  const std::byte* StaticValue(int64_t head, int64_t index) const {
    return sequence_.prompt + layout().static_values + StaticOffset(head, index);
  }
  // Exact tokens, of the prompt's local window or generated.
  const std::byte* ExactKey(int64_t head, int64_t position) const {
    return position < layout().prompt_tokens
               ? sequence_.prompt + layout().local_keys + LocalOffset(head, position)
               : sequence_.tail + tail_.exact_key(position, head);
  }
  const std::byte* ExactValue(int64_t head, int64_t position) const {
    return position < layout().prompt_tokens
               ? sequence_.prompt + layout().local_values + LocalOffset(head, position)
               : sequence_.tail + tail_.exact_value(position, head);
  }

 private:
  size_t StaticOffset(int64_t head, int64_t index) const {
    return static_cast<size_t>(head * layout().static_chunks * config().chunk_tokens + index) *
           config().vector_bytes();
  }
  size_t LocalOffset(int64_t head, int64_t position) const {
    return static_cast<size_t>(head * layout().local_tokens + position - layout().coded.tokens) *
           config().vector_bytes();
  }

  const ShadowKvSequence& sequence_;
  ShadowKvTailLayout tail_;
  int64_t blocks_;
};

// A head's part of a sequence's cache.
struct ShadowKvHeadCache {
  ShadowKvCacheTable table;
  std::byte* keys = nullptr;    // [slots][chunk][head_dim]
  std::byte* values = nullptr;  // the same, dequantized; quantized values only
};

inline ShadowKvHeadCache MakeShadowKvHeadCache(const ShadowKvConfig& config,
                                               std::byte* cache,
                                               int64_t head) {
  const ShadowKvCacheLayout layout(config, ShadowKvCachedValues::kDequantized);
  const int64_t first = head * layout.slots_per_head;
  const size_t bytes = static_cast<size_t>(first * config.chunk_tokens) * config.vector_bytes();
  return {.table = {.ids = reinterpret_cast<int32_t*>(cache + layout.ids) + first,
                    .slots = reinterpret_cast<int32_t*>(cache + layout.slots) + first,
                    .count = layout.slots_per_head},
          .keys = cache + layout.keys + bytes,
          .values = cache + layout.values + bytes};
}

// Number of ids before the first -1, at most `limit`.
inline int64_t ShadowKvCountIds(const int32_t* chunk_ids, int64_t limit) {
  int64_t count = 0;
  while (count < limit && chunk_ids[count] >= 0) {
    ++count;
  }
  return count;
}

}  // namespace baton::kernels
