#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
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

// One KV head of one sequence.
struct Task {
  const IsaKernels& isa;
  const ShadowKvSequenceView& view;
  int64_t head;
  int64_t group;   // query heads per KV head
  const float* q;  // [group][head_dim]
  float scale;
  SelectScratch scratch;

  // Logits of every coded token under query head g of the group; value clusters only.
  float* TokenLogits(int64_t g) const {
    return scratch.tokens + g * view.chunks() * view.config().chunk_tokens;
  }
};

// logits (+)= x . rows of one section's landmarks or deviations.
void DotSection(const Task& task,
                const float* x,
                const std::byte* rows,
                int64_t count,
                bool accumulate,
                float* logits) {
  const ShadowKvConfig& config = task.view.config();
  task.isa.dot_rows({.x = x,
                     .x_stride = config.head_dim,
                     .lines = task.group,
                     .rows = rows,
                     .row_stride = config.head_dim,
                     .count = count,
                     .bf16 = config.dtype == DType::kBF16,
                     .depth = config.head_dim,
                     .accumulate = accumulate,
                     .out = logits,
                     .out_stride = task.view.chunks()});
}

// Rows in codes of one section and KV head: 2-bit keys of its tokens, or landmarks of its chunks.
struct CodedRows {
  const uint8_t* codes;
  const uint16_t* pairs;  // scale and zero of each row
  int32_t bits;           // 2 or 8
  int64_t count;
  int64_t rows_per_chunk;
};

CodedRows RowsOf(const Task& task, const ShadowKvCodedView& section) {
  const ShadowKvConfig& config = task.view.config();
  if (config.quantized_landmarks()) {
    return {.codes = reinterpret_cast<const uint8_t*>(section.Landmarks(task.head)),
            .pairs = section.LandmarkScales(task.head),
            .bits = config.landmark_bits,
            .count = section.layout().chunks,
            .rows_per_chunk = 1};
  }
  return {.codes = section.KeyCodes(task.head, 0),
          .pairs = section.KeyScale(task.head, 0),
          .bits = 2,
          .count = section.layout().tokens,
          .rows_per_chunk = config.chunk_tokens};
}

// Widens the codes of `count` rows from `row` on.
void Unpack(const Task& task, const CodedRows& rows, int64_t row, int64_t count) {
  const auto row_bytes = static_cast<int64_t>(task.view.config().code_bytes(rows.bits));
  const uint8_t* codes = rows.codes + row * row_bytes;
  float* out = task.scratch.codes;
  for (int64_t i = 0; i < count * row_bytes; ++i) {
    const uint32_t byte = codes[i];
    if (rows.bits == 8) {
      *out++ = static_cast<float>(byte);
      continue;
    }
    for (int32_t bit = 0; bit < 8; bit += 2) {
      *out++ = static_cast<float>((byte >> bit) & 3u);
    }
  }
}

// Scores of one section's chunks from rows in codes: q . x = scale (q . codes) + zero sum(q), of
// several the largest. first_row: of the section, counted over all sections.
void ScoreCodedRows(const Task& task, const CodedRows& rows, int64_t first_row, float* logits) {
  const ShadowKvConfig& config = task.view.config();
  const int64_t dim = config.head_dim;
  for (int64_t first = 0; first < rows.count; first += kShadowKvBlockTokens) {
    const int64_t count = std::min(kShadowKvBlockTokens, rows.count - first);
    Unpack(task, rows, first, count);
    task.isa.dot_rows({.x = task.q,
                       .x_stride = dim,
                       .lines = task.group,
                       .rows = reinterpret_cast<const std::byte*>(task.scratch.codes),
                       .row_stride = dim,
                       .count = count,
                       .bf16 = false,
                       .depth = dim,
                       .out = task.scratch.dots,
                       .out_stride = kShadowKvBlockTokens});
    for (int64_t r = 0; r < count; ++r) {
      const uint16_t* pair = rows.pairs + 2 * (first + r);
      const float scale = F16ToF32(pair[0]);
      const float zero = F16ToF32(pair[1]);
      const int64_t chunk = (first + r) / rows.rows_per_chunk;
      const bool opens = (first + r) % rows.rows_per_chunk == 0;
      for (int64_t g = 0; g < task.group; ++g) {
        // scratch.magnitudes holds sum(q) of the group's queries here.
        const float score = scale * task.scratch.dots[g * kShadowKvBlockTokens + r] +
                            zero * task.scratch.magnitudes[g];
        float& best = logits[g * task.view.chunks() + chunk];
        best = opens ? score : std::max(best, score);
        if (config.value_clusters > 0) {
          task.TokenLogits(g)[first_row + first + r] = score * task.scale;
        }
      }
    }
  }
}

// Scores of every chunk under every query head of the group.
void ScoreChunks(const Task& task) {
  const ShadowKvConfig& config = task.view.config();
  const int64_t dim = config.head_dim;
  const bool coded = config.selector == ShadowKvSelector::kQ2 || config.quantized_landmarks();
  for (int64_t g = 0; g < task.group; ++g) {
    const float* q = task.q + g * dim;
    if (coded) {
      task.scratch.magnitudes[g] = std::accumulate(q, q + dim, 0.0f);
    } else {
      std::transform(
          q, q + dim, task.scratch.magnitudes + g * dim, [](float x) { return std::fabs(x); });
    }
  }
  for (int64_t index = 0; index < task.view.sections(); ++index) {
    const ShadowKvCodedView section = task.view.Section(index);
    float* logits = task.scratch.logits + task.view.SectionChunk(index);
    const int64_t count = section.layout().chunks;
    if (coded) {
      const CodedRows rows = RowsOf(task, section);
      ScoreCodedRows(task, rows, task.view.SectionChunk(index) * rows.rows_per_chunk, logits);
      continue;
    }
    DotSection(task, task.q, section.Landmarks(task.head), count, false, logits);
    if (config.selector == ShadowKvSelector::kBounds) {
      DotSection(task, task.scratch.magnitudes, section.Deviations(task.head), count, true, logits);
    }
  }
}

// scores[c] = max over the group of (logit - logsumexp); -inf for static chunks.
void NormaliseScores(const Task& task) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t chunks = task.view.chunks();
  const int32_t* static_ids = task.view.StaticIds(task.head);
  float* scores = task.scratch.scores;
  std::fill(scores, scores + chunks, kHidden);
  for (int64_t g = 0; g < task.group; ++g) {
    float* logits = task.scratch.logits + g * chunks;
    for (int64_t c = 0; c < chunks; ++c) {
      logits[c] *= task.scale;
    }
    for (int64_t i = 0; i < task.view.layout().static_chunks; ++i) {
      logits[static_ids[i]] = kHidden;
    }
    const float total = task.isa.log_sum_exp(logits, chunks);
    for (int64_t c = 0; c < chunks; ++c) {
      scores[c] = std::max(scores[c], logits[c] - total);
    }
  }
}

// The `selected` best ids, ascending; ties go to the lower id.
void TakeBest(const Task& task, int64_t selected, int32_t* ids) {
  int32_t* order = task.scratch.order;
  const float* scores = task.scratch.scores;
  const int64_t chunks = task.view.chunks();
  std::iota(order, order + chunks, 0);
  if (selected < chunks) {
    std::nth_element(order, order + selected, order + chunks, [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
  }
  std::copy(order, order + selected, ids);
  std::sort(ids, ids + selected);
}

// Hides the tokens of `count` chunks from the clusters.
void HideChunks(const Task& task, const int32_t* ids, int64_t count) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t chunk = task.view.config().chunk_tokens;
  for (int64_t g = 0; g < task.group; ++g) {
    for (int64_t i = 0; i < count; ++i) {
      std::fill_n(task.TokenLogits(g) + ids[i] * chunk, chunk, kHidden);
    }
  }
}

// logits[c] = log(sum e^logit) over the cluster's tokens that are not hidden. Overwrites the token
// logits by their weights.
void SumClusters(const Task& task, int64_t g, float* logits) {
  const int32_t clusters = task.view.config().value_clusters;
  float* weights = task.TokenLogits(g);
  float* sums = task.scratch.sums;
  const float max =
      task.isa.exp_below_max(weights, task.view.chunks() * task.view.config().chunk_tokens);
  std::fill_n(sums, clusters, 0.0f);
  for (int64_t index = 0; index < task.view.sections(); ++index) {
    const ShadowKvCodedView section = task.view.Section(index);
    const uint8_t* ids = section.ClusterIds(task.head, 0);
    for (int64_t t = 0; t < section.layout().tokens; ++t) {
      sums[ids[t]] += weights[t];
    }
    weights += section.layout().tokens;
  }
  for (int32_t c = 0; c < clusters; ++c) {
    logits[c] = sums[c] > 0.0f ? max + std::log(sums[c]) : -std::numeric_limits<float>::infinity();
  }
}

size_t SliceBytes(const ShadowKvSelectParams& params) {
  size_t bytes = 0;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const ShadowKvSequenceView view(params.sequences[s]);
    Carver counter(nullptr);
    CarveSelect(view.config(), params.heads / view.config().kv_heads, view.chunks(), counter);
    bytes = std::max(bytes, counter.used());
  }
  return bytes;
}

int64_t TotalChunks(const ShadowKvSelectParams& params) {
  int64_t chunks = 0;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    chunks += ShadowKvSequenceView(params.sequences[s]).chunks();
  }
  return chunks;
}

void SelectHead(const IsaKernels& isa,
                const ShadowKvSelectParams& params,
                int64_t index,
                int64_t head,
                std::byte* slice) {
  const ShadowKvSequence& sequence = params.sequences[index];
  const ShadowKvSequenceView view(sequence);
  const ShadowKvConfig& config = view.config();
  const int64_t group = params.heads / config.kv_heads;
  int32_t* ids = params.chunk_ids + (index * config.kv_heads + head) * params.chunk_ids_stride;
  std::fill(ids, ids + params.chunk_ids_stride, -1);
  const int64_t selected = ShadowKvSelectedChunks(view.layout(), view.tokens());
  if (view.chunks() == 0 || (selected == 0 && config.value_clusters == 0)) {
    return;
  }
  Carver carver(slice);
  const Task task = {
      .isa = isa,
      .view = view,
      .head = head,
      .group = group,
      .q = Floats(params.q) + sequence.row * params.q_stride + head * group * config.head_dim,
      .scale = params.scale,
      .scratch = CarveSelect(config, group, view.chunks(), carver)};
  ScoreChunks(task);
  NormaliseScores(task);
  TakeBest(task, selected, ids);
  if (config.value_clusters == 0) {
    return;
  }
  HideChunks(task, ids, selected);
  HideChunks(task, view.StaticIds(head), view.layout().static_chunks);
  for (int64_t g = 0; g < group; ++g) {
    const int64_t line = index * params.heads + head * group + g;
    SumClusters(task, g, params.cluster_logits + line * params.cluster_stride);
  }
}

}  // namespace

absl::Status ShadowKvSelect(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvSelectParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.num_sequences == 0) {
    return absl::OkStatus();
  }
  const size_t slice_bytes = SliceBytes(params);
  const size_t needed = static_cast<size_t>(context.pool->threads()) * slice_bytes;
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_select", context, needed);
      !status.ok()) {
    return status;
  }
  if (params.cluster_logits != nullptr) {
    std::fill_n(params.cluster_logits,
                params.num_sequences * params.heads * params.cluster_stride,
                -std::numeric_limits<float>::infinity());
  }
  const ShadowKvConfig& config = params.sequences[0].layout->config;
  const int64_t kv_heads = config.kv_heads;
  const int64_t tasks = params.num_sequences * kv_heads;
  const int64_t elements = TotalChunks(params) * params.heads * config.head_dim;
  ParallelFor(context, tasks, elements < 2 * kSerialElements, [&](int64_t index, int thread) {
    SelectHead(isa,
               params,
               index / kv_heads,
               index % kv_heads,
               context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
