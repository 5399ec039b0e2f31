#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_workspace.h"

namespace baton::kernels::reference {
namespace {

// One KV head of one sequence, and the keys and values gathered for it.
struct Head {
  const ShadowKvAttentionParams& params;
  const ShadowKvSequenceView& view;
  int64_t index;  // of the sequence in the call
  int64_t head;
  AttendScratch scratch;
  int64_t tokens = 0;  // gathered

  const ShadowKvSequence& sequence() const { return params.sequences[index]; }
};

void GatherExact(Head& at, const std::byte* key, const std::byte* value) {
  const ShadowKvConfig& config = at.view.config();
  for (int64_t i = 0; i < config.head_dim; ++i) {
    const int64_t to = at.tokens * config.head_dim + i;
    at.scratch.keys[to] = LoadElement(key, config.dtype, static_cast<size_t>(i));
    at.scratch.values[to] = LoadElement(value, config.dtype, static_cast<size_t>(i));
  }
  ++at.tokens;
}

float Coefficient(const ShadowKvConfig& config,
                  const ShadowKvCodedView& section,
                  int64_t token,
                  int64_t column) {
  if (config.int8_coefficients) {
    return static_cast<float>(section.CoefficientCodes(token)[column]) *
           F16ToF32(section.CoefficientScales(token)[column]);
  }
  return LoadElement(section.Coefficients(token), config.dtype, static_cast<size_t>(column));
}

// Element i of the head's key before RoPE.
float FactoredKey(const Head& at, const ShadowKvCodedView& section, int64_t token, int64_t i) {
  const ShadowKvConfig& config = at.view.config();
  const int64_t column = at.head * config.head_dim + i;
  double sum = 0.0;
  for (int64_t j = 0; j < config.rank; ++j) {
    sum += double{Coefficient(config, section, token, j)} *
           double{LoadElement(
               at.view.basis(), config.dtype, static_cast<size_t>(j * config.width() + column))};
  }
  const float bias = at.params.key_bias == nullptr ? 0.0f : at.params.key_bias[column];
  return static_cast<float>(sum) + bias;
}

// Writes the reconstructed key of a coded token to `key`, rounded to the configuration's dtype.
void ReconstructKey(
    const Head& at, const ShadowKvCodedView& section, int64_t token, int64_t position, float* key) {
  const ShadowKvConfig& config = at.view.config();
  const int64_t half = config.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float low = FactoredKey(at, section, token, i);
    const float high = FactoredKey(at, section, token, i + half);
    const float cosine = at.params.rope.cosines[position * half + i];
    const float sine = at.params.rope.sines[position * half + i];
    key[i] = low * cosine - high * sine;
    key[i + half] = high * cosine + low * sine;
  }
}

float Value(const Head& at, const ShadowKvCodedView& section, int64_t token, int64_t i) {
  const ShadowKvConfig& config = at.view.config();
  const std::byte* value = section.Value(at.head, token);
  if (!config.quantized_values()) {
    return LoadElement(value, config.dtype, static_cast<size_t>(i));
  }
  const uint16_t* pair = section.ValueScale(at.head, token);
  return DequantCode(
      ShadowKvLoadCode(reinterpret_cast<const uint8_t*>(value), i, config.value_bits),
      {.scale = pair[0], .zero = pair[1]});
}

// Gathers a selected chunk by reconstruction; `cached_keys` and `cached_values`, if not null, get
// what was gathered.
void GatherReconstructed(Head& at, int32_t id, std::byte* cached_keys, std::byte* cached_values) {
  const ShadowKvConfig& config = at.view.config();
  const ShadowKvChunk chunk = at.view.Chunk(id);
  for (int64_t t = 0; t < config.chunk_tokens; ++t) {
    const int64_t token = chunk.chunk * config.chunk_tokens + t;
    float* key = at.scratch.keys + at.tokens * config.head_dim;
    float* value = at.scratch.values + at.tokens * config.head_dim;
    ReconstructKey(at, chunk.section, token, int64_t{id} * config.chunk_tokens + t, key);
    for (int64_t i = 0; i < config.head_dim; ++i) {
      value[i] = Value(at, chunk.section, token, i);
      if (config.dtype == DType::kBF16) {
        key[i] = BF16ToF32(F32ToBF16(key[i]));
        value[i] = BF16ToF32(F32ToBF16(value[i]));
      }
      if (cached_keys != nullptr) {
        StoreElement(cached_keys, config.dtype, t * config.head_dim + i, key[i]);
      }
      if (cached_values != nullptr) {
        StoreElement(cached_values, config.dtype, t * config.head_dim + i, value[i]);
      }
    }
    ++at.tokens;
  }
}

// Gathers a selected chunk from its cache slot.
void GatherCached(Head& at, int32_t id, const std::byte* keys, const std::byte* values) {
  const ShadowKvConfig& config = at.view.config();
  const ShadowKvChunk chunk = at.view.Chunk(id);
  for (int64_t t = 0; t < config.chunk_tokens; ++t) {
    const size_t at_token = static_cast<size_t>(t) * config.vector_bytes();
    const std::byte* value =
        config.quantized_values()
            ? values + at_token
            : chunk.section.Value(at.head, chunk.chunk * config.chunk_tokens + t);
    GatherExact(at, keys + at_token, value);
  }
}

// Gathers the selected chunks and returns how many were hits.
int64_t GatherSelected(Head& at, const int32_t* ids, int64_t selected) {
  const ShadowKvConfig& config = at.view.config();
  std::byte* base = at.sequence().cache;
  if (base == nullptr) {
    for (int64_t i = 0; i < selected; ++i) {
      GatherReconstructed(at, ids[i], nullptr, nullptr);
    }
    return 0;
  }
  const ShadowKvHeadCache cache = MakeShadowKvHeadCache(config, base, at.head);
  const int64_t hits =
      ShadowKvPlanCache(cache.table, ids, selected, at.scratch.plan, at.scratch.free_slots);
  const size_t chunk_bytes = static_cast<size_t>(config.chunk_tokens) * config.vector_bytes();
  for (int64_t i = 0; i < selected; ++i) {
    const int32_t plan = at.scratch.plan[i];
    const size_t offset = static_cast<size_t>(plan >= 0 ? plan : ~plan) * chunk_bytes;
    if (plan >= 0) {
      GatherCached(at, ids[i], cache.keys + offset, cache.values + offset);
    } else {
      GatherReconstructed(at,
                          ids[i],
                          cache.keys + offset,
                          config.quantized_values() ? cache.values + offset : nullptr);
    }
  }
  return hits;
}

// Softmax attention of one query over the gathered tokens and the clusters' mean values;
// cluster_logits is null without clusters. `out` holds attention over other keys, of log-sum-exp
// `prior` (-inf: none). Returns the log-sum-exp over all.
double AttendOneQuery(
    const Head& at, const float* q, const float* cluster_logits, double prior, float* out) {
  const ShadowKvConfig& config = at.view.config();
  const int64_t clusters = cluster_logits == nullptr ? 0 : config.value_clusters;
  const int64_t dim = at.view.config().head_dim;
  const auto score = [&](int64_t token) {
    double dot = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
      dot += double{q[i]} * double{at.scratch.keys[token * dim + i]};
    }
    return dot * double{at.params.scale};
  };
  double max_score = prior;
  for (int64_t token = 0; token < at.tokens; ++token) {
    max_score = std::max(max_score, score(token));
  }
  for (int64_t c = 0; c < clusters; ++c) {
    max_score = std::max(max_score, double{cluster_logits[c]});
  }
  if (max_score == -INFINITY) {
    std::fill(out, out + dim, 0.0f);
    return max_score;
  }
  double sum = std::exp(prior - max_score);
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = sum > 0.0 ? static_cast<float>(sum * double{out[i]}) : 0.0f;
  }
  for (int64_t token = 0; token < at.tokens; ++token) {
    const double weight = std::exp(score(token) - max_score);
    sum += weight;
    for (int64_t i = 0; i < dim; ++i) {
      out[i] += static_cast<float>(weight * double{at.scratch.values[token * dim + i]});
    }
  }
  for (int64_t c = 0; c < clusters; ++c) {
    const double weight = std::exp(double{cluster_logits[c]} - max_score);
    sum += weight;
    for (int64_t i = 0; i < dim; ++i) {
      const float value = LoadElement(
          at.view.ClusterValues(at.head), config.dtype, static_cast<size_t>(c * dim + i));
      out[i] += static_cast<float>(weight * double{value});
    }
  }
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = static_cast<float>(double{out[i]} / sum);
  }
  return max_score + std::log(sum);
}

void AttendHead(Head& at) {
  const ShadowKvAttentionParams& params = at.params;
  const ShadowKvConfig& config = at.view.config();
  for (int64_t i = 0; i < at.view.layout().static_chunks * config.chunk_tokens; ++i) {
    GatherExact(at, at.view.StaticKey(at.head, i), at.view.StaticValue(at.head, i));
  }
  for (int64_t position = at.view.first_exact(); position < at.view.tokens(); ++position) {
    GatherExact(at, at.view.ExactKey(at.head, position), at.view.ExactValue(at.head, position));
  }
  const int32_t* ids =
      params.chunk_ids + (at.index * config.kv_heads + at.head) * params.chunk_ids_stride;
  const int64_t selected = ShadowKvCountIds(ids, params.chunk_ids_stride);
  const int64_t hits = GatherSelected(at, ids, selected);
  if (ShadowKvCounters* counters = at.sequence().counters; counters != nullptr) {
    counters->hits += hits;
    counters->misses += selected - hits;
    counters->attended_tokens += at.tokens + config.value_clusters;
  }
  const int64_t group = params.heads / config.kv_heads;
  const int64_t row = at.sequence().row;
  for (int64_t g = 0; g < group; ++g) {
    const int64_t head = at.head * group + g;
    const int64_t column = head * config.head_dim;
    float* lse = params.lse == nullptr ? nullptr : params.lse + row * params.heads + head;
    const double total = AttendOneQuery(
        at,
        Floats(params.q) + row * params.q_stride + column,
        params.cluster_logits == nullptr
            ? nullptr
            : params.cluster_logits + (at.index * params.heads + head) * params.cluster_stride,
        lse == nullptr ? -INFINITY : double{*lse},
        Floats(params.out) + row * params.out_stride + column);
    if (lse != nullptr) *lse = static_cast<float>(total);
  }
}

}  // namespace

absl::Status ShadowKvAttention(const ExecContext& context, const ShadowKvAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t index = 0; index < params.num_sequences; ++index) {
    const ShadowKvSequenceView view(params.sequences[index]);
    // Nothing is attended twice, so a sequence's length bounds what is gathered, unless the ids
    // name static chunks.
    const int64_t tokens = view.tokens() + view.layout().static_chunks * view.config().chunk_tokens;
    Carver counter(nullptr);
    CarveAttend(view.config(), tokens, counter);
    if (absl::Status status = CheckShadowKvWorkspace("shadowkv_attention", context, counter.used());
        !status.ok()) {
      return status;
    }
    for (int64_t head = 0; head < view.config().kv_heads; ++head) {
      Carver carver(context.workspace->data());
      Head at = {.params = params,
                 .view = view,
                 .index = index,
                 .head = head,
                 .scratch = CarveAttend(view.config(), tokens, carver)};
      AttendHead(at);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
