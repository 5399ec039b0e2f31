// Work sharing and paging of attention; the arithmetic is in attention_fold_inl.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/attention_lines.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// One call of the op with what all tasks share.
struct Call {
  const IsaKernels& isa;
  const PagedAttentionParams& params;
  int64_t group;  // query heads per KV head
  int64_t kv_heads;
};

// The lines [line_begin, line_end) of one KV head of one sequence; line / group is the row.
struct Task {
  const SequenceRows* sequence;
  int32_t kv_head;
  int64_t line_begin;
  int64_t line_end;
};

int64_t TilesOf(const Call& call, const SequenceRows& sequence) {
  return (sequence.row_count * call.group + kMaxTileLines - 1) / kMaxTileLines;
}

// Late rows see the most keys, so a sequence's last tile comes first: threads end together.
Task FindTask(const Call& call, int64_t index) {
  const SequenceRows* sequence = call.params.sequences;
  while (index >= TilesOf(call, *sequence) * call.kv_heads) {
    index -= TilesOf(call, *sequence) * call.kv_heads;
    ++sequence;
  }
  const int64_t tile = TilesOf(call, *sequence) - 1 - index / call.kv_heads;
  const int64_t begin = tile * kMaxTileLines;
  return {.sequence = sequence,
          .kv_head = static_cast<int32_t>(index % call.kv_heads),
          .line_begin = begin,
          .line_end = std::min(begin + kMaxTileLines, sequence->row_count * call.group)};
}

struct Keys {
  int64_t first;
  int64_t last;
};

// Copies the task's queries into the tile and returns the keys that any of its lines sees.
Keys BeginLines(const Call& call, const Task& task, AttentionScratch& scratch) {
  const PagedAttentionParams& params = call.params;
  Keys keys = {INT32_MAX, -1};
  scratch.tile.lines = task.line_end - task.line_begin;
  for (int64_t i = 0; i < scratch.tile.lines; ++i) {
    const int64_t line = task.line_begin + i;
    const int64_t row = task.sequence->row_begin + line / call.group;
    const int64_t head = task.kv_head * call.group + line % call.group;
    const int32_t position = params.positions[row];
    const int32_t last = std::min(position, task.sequence->key_end - 1);
    const int32_t first =
        std::max(task.sequence->key_begin,
                 params.sliding_window > 0 ? position - params.sliding_window + 1 : 0);
    scratch.first_key[i] = first;
    scratch.last_key[i] = last;
    if (first <= last) {
      keys.first = std::min<int64_t>(keys.first, first);
      keys.last = std::max<int64_t>(keys.last, last);
    }
    call.isa.attention_begin(
        scratch.tile,
        i,
        Floats(params.q) + row * params.q_stride + head * scratch.tile.head_dim,
        params.scale);
    if (params.merge) {
      SeedLine(call.isa,
               scratch.tile,
               i,
               Floats(params.out) + row * params.out_stride + head * scratch.tile.head_dim,
               params.lse[row * params.heads + head]);
    }
  }
  return keys;
}

KvElement ElementOf(DType dtype) {
  if (dtype == DType::kF8E4M3) {
    return KvElement::kF8E4M3;
  }
  return dtype == DType::kF32 ? KvElement::kF32 : KvElement::kBF16;
}

// Copies the scales of the page's slots [slot, slot + count) behind the block's first `token`.
void CopyScales(const DensePageLayout& layout,
                const std::byte* page,
                int32_t head,
                int32_t slot,
                int count,
                int token,
                KvBlock& block) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  std::memcpy(block.key_scales + token, page + layout.key_scale_offset(head, slot), bytes);
  std::memcpy(block.value_scales + token, page + layout.value_scale_offset(head, slot), bytes);
}

// Token addresses of the KV block starting at `position`, up to `last_key`.
void LocateBlock(
    const Call& call, const Task& task, int64_t position, int64_t last_key, KvBlock& block) {
  const DensePages& pages = call.params.pages;
  const DensePageLayout& layout = pages.layout;
  block.position = static_cast<int32_t>(position);
  block.tokens = static_cast<int>(std::min<int64_t>(kKvBlockTokens, last_key + 1 - position));
  const size_t token_bytes = static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
  int token = 0;
  while (token < block.tokens) {
    const int64_t absolute = position + token;
    const auto slot = static_cast<int32_t>(absolute % layout.page_tokens);
    const int32_t page_id = task.sequence->page_table[absolute / layout.page_tokens];
    const std::byte* page = pages.base + static_cast<size_t>(page_id) * layout.stride_bytes();
    const std::byte* key = page + layout.key_offset(task.kv_head, slot);
    const std::byte* value = page + layout.value_offset(task.kv_head, slot);
    const int end = std::min(block.tokens, token + layout.page_tokens - slot);
    if (layout.has_scales()) {
      CopyScales(layout, page, task.kv_head, slot, end - token, token, block);
    }
    for (; token < end; ++token, key += token_bytes, value += token_bytes) {
      block.keys[token] = key;
      block.values[token] = value;
    }
  }
  std::fill(block.keys + block.tokens, block.keys + kKvBlockTokens, nullptr);
  std::fill(block.key_scales + block.tokens, block.key_scales + kKvBlockTokens, 0.0f);
}

void RunTask(const Call& call, const Task& task, std::byte* slice) {
  const PagedAttentionParams& params = call.params;
  AttentionScratch scratch = CarveAttention(call.isa, params.pages.layout.head_dim, slice);
  const Keys keys = BeginLines(call, task, scratch);
  KvBlock block;
  block.element = ElementOf(params.pages.layout.dtype);
  // Blocks start at multiples of their size from the first key on that the sequence may show.
  const int64_t begin = task.sequence->key_begin;
  for (int64_t position = begin + (keys.first - begin) / kKvBlockTokens * kKvBlockTokens;
       position <= keys.last;
       position += kKvBlockTokens) {
    LocateBlock(call, task, position, keys.last, block);
    call.isa.attention_load(scratch.tile, block);
    call.isa.attention_fold(scratch.tile, block);
  }
  for (int64_t i = 0; i < scratch.tile.lines; ++i) {
    const int64_t line = task.line_begin + i;
    const int64_t row = task.sequence->row_begin + line / call.group;
    const int64_t head = task.kv_head * call.group + line % call.group;
    FinishLine(call.isa,
               scratch.tile,
               i,
               Floats(params.out) + row * params.out_stride + head * scratch.tile.head_dim,
               params.lse == nullptr ? nullptr : params.lse + row * params.heads + head);
  }
}

}  // namespace

absl::Status PagedAttention(const IsaKernels& isa,
                            const ExecContext& context,
                            const PagedAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const size_t slice_bytes = AttentionScratchBytes(isa, layout.head_dim);
  if (absl::Status status = CheckWorkspace("paged_attention", context, slice_bytes); !status.ok()) {
    return status;
  }
  const Call call = {.isa = isa,
                     .params = params,
                     .group = params.heads / std::max(layout.kv_heads, 1),
                     .kv_heads = layout.kv_heads};
  int64_t tasks = 0;
  int64_t key_elements = 0;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const SequenceRows& sequence = params.sequences[s];
    tasks += TilesOf(call, sequence) * call.kv_heads;
    if (sequence.row_count > 0) {
      const int64_t end = std::min<int64_t>(
          int64_t{params.positions[sequence.row_begin + sequence.row_count - 1]} + 1,
          sequence.key_end);
      key_elements += sequence.row_count * params.heads * layout.head_dim *
                      std::max<int64_t>(0, end - sequence.key_begin);
    }
  }
  ParallelFor(context, tasks, key_elements < 2 * kSerialElements, [&](int64_t index, int thread) {
    RunTask(call,
            FindTask(call, index),
            context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
