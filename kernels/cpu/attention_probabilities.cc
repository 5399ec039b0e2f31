// Work sharing and paging of attention_probabilities; the arithmetic is in probabilities_inl.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/attention_lines.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Some rows of one KV head.
struct Task {
  int32_t kv_head;
  int64_t row_begin;
  int64_t row_end;
};

// Rows of a tile: few enough that 64 rows occupy several threads.
int64_t TileRows(int64_t group) { return std::clamp<int64_t>(kMaxTileLines / group, 1, 16); }

// Copies the task's queries into the tile; returns the first and last key that a line sees.
std::pair<int64_t, int64_t> BeginLines(const IsaKernels& isa,
                                       const AttentionProbabilitiesParams& params,
                                       const Task& task,
                                       AttentionScratch& scratch) {
  const int64_t group = params.heads / params.pages.layout.kv_heads;
  std::pair<int64_t, int64_t> keys = {INT32_MAX, 0};
  scratch.tile.lines = (task.row_end - task.row_begin) * group;
  for (int64_t line = 0; line < scratch.tile.lines; ++line) {
    const int64_t row = task.row_begin + line / group;
    const int64_t head = task.kv_head * group + line % group;
    const int32_t last = params.positions[row];
    const int32_t first = std::max(
        params.key_begin, params.sliding_window > 0 ? last - params.sliding_window + 1 : 0);
    scratch.first_key[line] = first;
    scratch.last_key[line] = last;
    keys.first = std::min<int64_t>(keys.first, first);
    keys.second = std::max<int64_t>(keys.second, last);
    isa.attention_begin(scratch.tile,
                        line,
                        Floats(params.q) + row * params.q_stride + head * scratch.tile.head_dim,
                        params.scale);
  }
  return keys;
}

// Key addresses of the KV block starting at `position`, up to `last_key`.
void LocateKeys(const AttentionProbabilitiesParams& params,
                int32_t kv_head,
                int64_t position,
                int64_t last_key,
                KvBlock& block) {
  const DensePageLayout& layout = params.pages.layout;
  block.position = static_cast<int32_t>(position);
  block.tokens = static_cast<int>(std::min<int64_t>(kKvBlockTokens, last_key + 1 - position));
  for (int token = 0; token < block.tokens; ++token) {
    const int64_t absolute = position + token;
    const auto id = static_cast<size_t>(params.page_table[absolute / layout.page_tokens]);
    block.keys[token] =
        params.pages.base + id * layout.stride_bytes() +
        layout.key_offset(kv_head, static_cast<int32_t>(absolute % layout.page_tokens));
  }
  std::fill(block.keys + block.tokens, block.keys + kKvBlockTokens, nullptr);
}

// Finds the lines' maxima and factors[line] = 1 / sum of the weights relative to the maximum.
void MeasureLines(const IsaKernels& isa,
                  const AttentionProbabilitiesParams& params,
                  const Task& task,
                  int64_t first_block,
                  int64_t last,
                  const AttentionTile& tile,
                  float* factors) {
  if (params.lse != nullptr) {
    const int64_t group = params.heads / params.pages.layout.kv_heads;
    for (int64_t line = 0; line < tile.lines; ++line) {
      const int64_t row = task.row_begin + line / group;
      const int64_t head = task.kv_head * group + line % group;
      tile.row_max[line] = params.lse[row * params.heads + head] * kLog2E;
      factors[line] = 1.0f;
    }
    return;
  }
  KvBlock block;
  block.element = params.pages.layout.dtype == DType::kBF16 ? KvElement::kBF16 : KvElement::kF32;
  for (int64_t position = first_block; position <= last; position += kKvBlockTokens) {
    LocateKeys(params, task.kv_head, position, last, block);
    isa.attention_load_keys(tile, block);
    isa.attention_measure(tile, block);
  }
  for (int64_t line = 0; line < tile.lines; ++line) {
    factors[line] = 1.0f / SumOfWeights(isa, tile, line);
  }
}

void RunTask(const IsaKernels& isa,
             const AttentionProbabilitiesParams& params,
             const Task& task,
             int64_t end,
             std::byte* slice) {
  const DensePageLayout& layout = params.pages.layout;
  const int64_t row_stride = layout.kv_heads * params.probability_stride;
  float* out =
      params.probabilities + task.row_begin * row_stride + task.kv_head * params.probability_stride;
  for (int64_t row = task.row_begin; !params.combine && row < task.row_end; ++row) {
    std::fill_n(out + (row - task.row_begin) * row_stride, end, 0.0f);
  }
  AttentionScratch scratch = CarveAttention(isa, layout.head_dim, slice);
  const auto [first, last] = BeginLines(isa, params, task, scratch);
  const int64_t begin = params.key_begin;
  const int64_t first_block = begin + (first - begin) / kKvBlockTokens * kKvBlockTokens;
  float* factors = scratch.tile.sum_values;  // no values are summed here
  MeasureLines(isa, params, task, first_block, last, scratch.tile, factors);
  KvBlock block;
  block.element = layout.dtype == DType::kBF16 ? KvElement::kBF16 : KvElement::kF32;
  for (int64_t position = first_block; position <= last; position += kKvBlockTokens) {
    LocateKeys(params, task.kv_head, position, last, block);
    isa.attention_load_keys(scratch.tile, block);
    isa.attention_raise(scratch.tile,
                        block,
                        factors,
                        params.heads / layout.kv_heads,
                        out + (position - begin),
                        row_stride);
  }
}

}  // namespace

absl::Status AttentionProbabilities(const IsaKernels& isa,
                                    const ExecContext& context,
                                    const AttentionProbabilitiesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  const DensePageLayout& layout = params.pages.layout;
  const int64_t group = params.heads / layout.kv_heads;
  if (group > kMaxTileLines) {
    return absl::InvalidArgumentError(absl::StrCat("attention_probabilities: ",
                                                   group,
                                                   " query heads per KV head are more than ",
                                                   kMaxTileLines));
  }
  const size_t slice_bytes = AttentionScratchBytes(isa, layout.head_dim);
  if (absl::Status status = CheckWorkspace("attention_probabilities", context, slice_bytes);
      !status.ok()) {
    return status;
  }
  const int64_t tile_rows = TileRows(group);
  const int64_t tiles = (params.rows + tile_rows - 1) / tile_rows;
  const int64_t end =
      *std::max_element(params.positions, params.positions + params.rows) + 1 - params.key_begin;
  const bool serial = params.rows * params.heads * layout.head_dim * end < 2 * kSerialElements;
  ParallelFor(context, tiles * layout.kv_heads, serial, [&](int64_t index, int thread) {
    const int64_t tile = index / layout.kv_heads;
    RunTask(isa,
            params,
            {.kv_head = static_cast<int32_t>(index % layout.kv_heads),
             .row_begin = tile * tile_rows,
             .row_end = std::min((tile + 1) * tile_rows, params.rows)},
            end,
            context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
