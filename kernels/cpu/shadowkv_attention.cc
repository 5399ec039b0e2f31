// Work sharing and gathering of sparse attention; the arithmetic is that of attention_fold_inl.h
// over blocks of 64 gathered tokens: static chunks, exact tokens, then selected chunks by id.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/attention_lines.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/shadowkv_reconstruct.h"
#include "kernels/cpu/shadowkv_workspace.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Folds tokens into the attention tile, 64 at a time in the order of Add.
class TokenFolder {
 public:
  TokenFolder(const IsaKernels& isa, const AttentionTile& tile, bool bf16)
      : isa_(isa), tile_(tile) {
    block_.element = bf16 ? KvElement::kBF16 : KvElement::kF32;
  }

  void Add(const std::byte* key, const std::byte* value) {
    block_.keys[block_.tokens] = key;
    block_.values[block_.tokens] = value;
    ++folded_;
    if (++block_.tokens == kKvBlockTokens) {
      Fold();
    }
  }
  // Folds what is left; returns the number of tokens of all Adds.
  int64_t Finish() {
    if (block_.tokens > 0) {
      std::fill(block_.keys + block_.tokens, block_.keys + kKvBlockTokens, nullptr);
      Fold();
    }
    return folded_;
  }

 private:
  void Fold() {
    isa_.attention_load(tile_, block_);
    isa_.attention_fold(tile_, block_);
    block_.tokens = 0;
  }

  const IsaKernels& isa_;
  const AttentionTile& tile_;
  KvBlock block_;
  int64_t folded_ = 0;
};

// One KV head of one sequence.
struct Task {
  const IsaKernels& isa;
  const ShadowKvAttentionParams& params;
  const ShadowKvSequenceView& view;
  int64_t index;  // of the sequence in the call
  int64_t head;
  AttendScratch scratch;
};

void AddExact(const Task& task, TokenFolder& folder) {
  const ShadowKvSequenceView& view = task.view;
  const int64_t static_tokens = view.layout().static_chunks * view.config().chunk_tokens;
  for (int64_t i = 0; i < static_tokens; ++i) {
    folder.Add(view.StaticKey(task.head, i), view.StaticValue(task.head, i));
  }
  for (int64_t position = view.first_exact(); position < view.tokens(); ++position) {
    folder.Add(view.ExactKey(task.head, position), view.ExactValue(task.head, position));
  }
}

// The head's cache, or scratch that is laid out like one and holds nothing yet.
ShadowKvHeadCache FindCache(const Task& task) {
  std::byte* cache = task.params.sequences[task.index].cache;
  if (cache != nullptr) {
    return MakeShadowKvHeadCache(task.view.config(), cache, task.head);
  }
  return {.table = {}, .keys = task.scratch.slot_keys, .values = task.scratch.slot_values};
}

// Plans where each selected chunk is; returns the number of hits.
int64_t Plan(const Task& task,
             const ShadowKvHeadCache& cache,
             const int32_t* ids,
             int64_t selected) {
  if (cache.table.ids != nullptr) {
    return ShadowKvPlanCache(
        cache.table, ids, selected, task.scratch.plan, task.scratch.free_slots);
  }
  for (int64_t i = 0; i < selected; ++i) {
    task.scratch.plan[i] = static_cast<int32_t>(~i);
  }
  return 0;
}

void AddSelected(const Task& task,
                 const ShadowKvHeadCache& cache,
                 const int32_t* ids,
                 int64_t selected,
                 TokenFolder& folder) {
  const ShadowKvConfig& config = task.view.config();
  const size_t bytes = config.vector_bytes();
  for (int64_t i = 0; i < selected; ++i) {
    const int32_t plan = task.scratch.plan[i];
    const int64_t slot = plan >= 0 ? plan : ~plan;
    const ShadowKvChunk chunk = task.view.Chunk(ids[i]);
    for (int64_t t = 0; t < config.chunk_tokens; ++t) {
      const size_t offset = static_cast<size_t>(slot * config.chunk_tokens + t) * bytes;
      folder.Add(cache.keys + offset,
                 config.quantized_values()
                     ? cache.values + offset
                     : chunk.section.Value(task.head, chunk.chunk * config.chunk_tokens + t));
    }
  }
}

// Makes room in the line's running sums for weights up to e^logit.
void RaiseMax(AttentionTile& tile, int64_t line, float log2_weight, int64_t lanes) {
  if (log2_weight <= tile.row_max[line]) {
    return;
  }
  const float factor = std::exp2(tile.row_max[line] - log2_weight);
  tile.row_max[line] = log2_weight;
  for (int64_t i = 0; i < lanes; ++i) {
    tile.row_sum[line * lanes + i] *= factor;
  }
  for (int64_t i = 0; i < tile.width; ++i) {
    tile.sum_values[line * tile.width + i] *= factor;
  }
}

// Folds the clusters' mean values into every line, once all tokens are folded.
void FoldClusters(const Task& task, AttentionTile& tile) {
  const ShadowKvConfig& config = task.view.config();
  const int64_t dim = config.head_dim;
  const int64_t lanes = task.isa.panel_columns / 2;
  const float* logits =
      task.params.cluster_logits +
      (task.index * task.params.heads + task.head * tile.lines) * task.params.cluster_stride;
  for (int64_t c = 0; c < config.value_clusters; ++c) {
    LoadVector(task.isa,
               task.view.ClusterValues(task.head) + static_cast<size_t>(c) * config.vector_bytes(),
               config.dtype,
               dim,
               task.scratch.cluster);
    for (int64_t line = 0; line < tile.lines; ++line) {
      const float log2_weight =
          logits[line * task.params.cluster_stride + c] * std::numbers::log2e_v<float>;
      if (log2_weight == -std::numeric_limits<float>::infinity()) {
        continue;
      }
      RaiseMax(tile, line, log2_weight, lanes);
      const float weight = std::exp2(log2_weight - tile.row_max[line]);
      tile.row_sum[line * lanes] += weight;
      float* sums = tile.sum_values + line * tile.width;
      for (int64_t i = 0; i < dim; ++i) {
        sums[i] += weight * task.scratch.cluster[i];
      }
    }
  }
}

void AddCounters(ShadowKvCounters& counters, int64_t hits, int64_t misses, int64_t tokens) {
  std::atomic_ref(counters.hits).fetch_add(hits, std::memory_order_relaxed);
  std::atomic_ref(counters.misses).fetch_add(misses, std::memory_order_relaxed);
  std::atomic_ref(counters.attended_tokens).fetch_add(tokens, std::memory_order_relaxed);
}

void AttendHead(const IsaKernels& isa,
                const ShadowKvAttentionParams& params,
                int64_t index,
                int64_t head,
                std::byte* slice) {
  const ShadowKvSequence& sequence = params.sequences[index];
  const int64_t row = sequence.row;
  const ShadowKvSequenceView view(sequence);
  const ShadowKvConfig& config = view.config();
  Carver carver(slice);
  const Task task = {.isa = isa,
                     .params = params,
                     .view = view,
                     .index = index,
                     .head = head,
                     .scratch = CarveAttend(isa, config, carver)};
  const int64_t group = params.heads / config.kv_heads;
  const int64_t column = head * group * config.head_dim;
  float* out = Floats(params.out) + row * params.out_stride + column;
  float* lse = params.lse == nullptr ? nullptr : params.lse + row * params.heads + head * group;
  AttentionTile tile = task.scratch.attention.tile;
  tile.lines = group;
  for (int64_t g = 0; g < group; ++g) {
    task.scratch.attention.first_key[g] = 0;
    task.scratch.attention.last_key[g] = kKvBlockTokens;
    isa.attention_begin(tile,
                        g,
                        Floats(params.q) + row * params.q_stride + column + g * config.head_dim,
                        params.scale);
    if (params.lse != nullptr) {
      SeedLine(isa, tile, g, out + g * config.head_dim, lse[g]);
    }
  }
  TokenFolder folder(isa, tile, config.dtype == DType::kBF16);
  AddExact(task, folder);
  const int32_t* ids =
      params.chunk_ids + (index * config.kv_heads + head) * params.chunk_ids_stride;
  const int64_t selected = ShadowKvCountIds(ids, params.chunk_ids_stride);
  const ShadowKvHeadCache cache = FindCache(task);
  const int64_t hits = Plan(task, cache, ids, selected);
  ReconstructMisses({.isa = isa,
                     .view = view,
                     .rope = params.rope,
                     .key_bias = params.key_bias,
                     .head = head,
                     .ids = ids,
                     .selected = selected,
                     .plan = task.scratch.plan,
                     .keys = cache.keys,
                     .values = cache.values,
                     .scratch = task.scratch});
  AddSelected(task, cache, ids, selected, folder);
  const int64_t tokens = folder.Finish() + config.value_clusters;
  FoldClusters(task, tile);
  for (int64_t g = 0; g < group; ++g) {
    FinishLine(isa, tile, g, out + g * config.head_dim, lse == nullptr ? nullptr : lse + g);
  }
  if (sequence.counters != nullptr) {
    AddCounters(*sequence.counters, hits, selected - hits, tokens);
  }
}

}  // namespace

absl::Status ShadowKvAttention(const IsaKernels& isa,
                               const ExecContext& context,
                               const ShadowKvAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.num_sequences == 0) {
    return absl::OkStatus();
  }
  size_t slice_bytes = 0;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    Carver counter(nullptr);
    CarveAttend(isa, params.sequences[s].layout->config, counter);
    slice_bytes = std::max(slice_bytes, counter.used());
  }
  const size_t needed = static_cast<size_t>(context.pool->threads()) * slice_bytes;
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_attention", context, needed);
      !status.ok()) {
    return status;
  }
  const int64_t kv_heads = params.sequences[0].layout->config.kv_heads;
  ParallelFor(context, params.num_sequences * kv_heads, false, [&](int64_t index, int thread) {
    AttendHead(isa,
               params,
               index / kv_heads,
               index % kv_heads,
               context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
