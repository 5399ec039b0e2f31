// Where things of a sequence in format `shadowkv` lie, as kernels of a decode step look for them:
// one thread works out the few bases and strides of a KV head, all others use them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Shared memory of a multiprocessor of Hopper for its blocks, of which each takes 1 KiB for itself.
// Where there is less (device_code.h) fewer blocks run beside each other.
inline constexpr size_t kSharedBytes = size_t{224} << 10;

// Chunks of a sequence: those of the prompt, then those of the tail's blocks.
struct CodedChunks {
  int32_t prompt;
  int32_t count;        // of prompt and tail
  int32_t token_shift;  // log2 of a chunk's tokens
  int32_t block_shift;  // log2 of a block's chunks; of 64 tokens of the prompt too

  __device__ int32_t tokens() const { return 1 << token_shift; }
};

// What coded sections hold one after another for the chunks of a KV head.
struct CodedArray {
  const std::byte* prompt;  // the prompt's first chunk
  const std::byte* blocks;  // the first chunk of the tail's first block
  int64_t block_bytes;      // from block to block
  int32_t chunk_bytes;      // from chunk to chunk

  __device__ const std::byte* Chunk(const CodedChunks& chunks, int32_t id) const {
    if (id < chunks.prompt) return prompt + int64_t{id} * chunk_bytes;
    const int32_t behind = id - chunks.prompt;
    const int32_t in_block = behind & ((1 << chunks.block_shift) - 1);
    return blocks + (behind >> chunks.block_shift) * block_bytes + int64_t{in_block} * chunk_bytes;
  }
  // For what there is of every 64 tokens: `chunk_bytes` leads from one to the next.
  __device__ const std::byte* Group(const CodedChunks& chunks, int32_t id) const {
    if (id < chunks.prompt) return prompt + int64_t{id >> chunks.block_shift} * chunk_bytes;
    return blocks + ((id - chunks.prompt) >> chunks.block_shift) * block_bytes;
  }
};

// One sequence. Of a thread: nothing here is shared.
class SequencePlaces {
 public:
  __device__ explicit SequencePlaces(const ShadowKvSequence& sequence)
      : sequence_(sequence),
        layout_(*sequence.layout),
        tail_(*sequence.layout, sequence.max_generated) {}

  __device__ const ShadowKvPromptLayout& layout() const { return layout_; }
  __device__ const ShadowKvConfig& config() const { return layout_.config; }
  __device__ const ShadowKvTailLayout& tail() const { return tail_; }
  __device__ int64_t tokens() const { return int64_t{sequence_.position} + 1; }
  __device__ const std::byte* Prompt(size_t offset) const { return sequence_.prompt + offset; }
  // The head's exact key in slot 0 of the tail.
  __device__ const std::byte* TailKey(int64_t head) const {
    return sequence_.tail + head * static_cast<int64_t>(config().vector_bytes());
  }

  // No more than `limit` chunks: what memory has been set aside for.
  __device__ CodedChunks Chunks(int64_t limit) const {
    const int32_t shift = __ffs(config().chunk_tokens) - 1;
    const int64_t count = tail_.CodedTokensAt(tokens()) >> shift;
    return {.prompt = static_cast<int32_t>(layout_.coded.chunks),
            .count = static_cast<int32_t>(min(count, limit)),
            .token_shift = shift,
            .block_shift = 6 - shift};
  }

  // An array of a section with one row for each chunk of each head; `section` is its place in
  // ShadowKvCodedLayout.
  __device__ CodedArray ChunkRows(size_t ShadowKvCodedLayout::* section,
                                  int64_t head,
                                  int64_t row_bytes) const {
    return Rows(section, head * layout_.coded.chunks, head * tail_.block.chunks, row_bytes, 1);
  }
  // The same with one row for each token.
  __device__ CodedArray TokenRows(size_t ShadowKvCodedLayout::* section,
                                  int64_t head,
                                  int64_t row_bytes) const {
    return Rows(section,
                head * layout_.coded.tokens,
                head * tail_.block.tokens,
                row_bytes,
                config().chunk_tokens);
  }

  // Values of a head as they are stored.
  __device__ CodedArray Values(int64_t head) const {
    const auto row_bytes = static_cast<int64_t>(config().coded_value_bytes());
    const bool apart = config().values_apart;
    const std::byte* prompt = apart ? sequence_.value_prompt : Prompt(layout_.coded_begin);
    const std::byte* blocks = apart ? sequence_.value_tail : sequence_.tail + tail_.block_begin(0);
    const size_t block_bytes = apart ? tail_.block.value_bytes : tail_.block.bytes;
    return {.prompt = prompt + layout_.coded.values + head * layout_.coded.tokens * row_bytes,
            .blocks = blocks + tail_.block.values + head * tail_.block.tokens * row_bytes,
            .block_bytes = static_cast<int64_t>(block_bytes),
            .chunk_bytes = static_cast<int32_t>(row_bytes * config().chunk_tokens)};
  }
  // Coefficients, of bf16 or int8.
  __device__ CodedArray Coefficients() const {
    const int64_t row_bytes = int64_t{config().rank} * (config().int8_coefficients ? 1 : 2);
    if (config().joint) {
      return {.prompt = sequence_.joint_prompt,
              .blocks = sequence_.joint_tail,
              .block_bytes = static_cast<int64_t>(tail_.joint_block_begin(1)),
              .chunk_bytes = static_cast<int32_t>(row_bytes * config().chunk_tokens)};
    }
    return TokenRows(&ShadowKvCodedLayout::coefficients, 0, row_bytes);
  }
  // Scales of int8 coefficients, for CodedArray::Group.
  __device__ CodedArray CoefficientScales() const {
    CodedArray scales = Coefficients();
    scales.prompt += ShadowKvCoefficientLayout(config(), layout_.coded.tokens).scales;
    scales.blocks += ShadowKvCoefficientLayout(config(), kShadowKvBlockTokens).scales;
    scales.chunk_bytes = config().rank * 2;
    return scales;
  }

 private:
  __device__ CodedArray Rows(size_t ShadowKvCodedLayout::* section,
                             int64_t prompt_rows,
                             int64_t block_rows,
                             int64_t row_bytes,
                             int32_t rows_per_chunk) const {
    return {
        .prompt = Prompt(layout_.coded_begin + layout_.coded.*section) + prompt_rows * row_bytes,
        .blocks =
            sequence_.tail + tail_.block_begin(0) + tail_.block.*section + block_rows * row_bytes,
        .block_bytes = static_cast<int64_t>(tail_.block.bytes),
        .chunk_bytes = static_cast<int32_t>(row_bytes * rows_per_chunk)};
  }

  const ShadowKvSequence& sequence_;
  const ShadowKvPromptLayout& layout_;
  ShadowKvTailLayout tail_;
};

}  // namespace baton::kernels::cuda::shadowkv
