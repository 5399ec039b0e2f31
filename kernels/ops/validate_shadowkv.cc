// Checks of the ops over KV format `shadowkv`.
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

// `layers` are factored together.
void CheckRank(const ShadowKvConfig& config, int64_t layers, ParamChecker& check) {
  check.Require(config.rank <= layers * config.width(),
                "config.rank",
                config.rank,
                "must be at most kv_heads * head_dim of the layers it is shared by");
}

void CheckConfig(const ShadowKvConfig& config, ParamChecker& check) {
  const int32_t chunk = config.chunk_tokens;
  const int32_t bits = config.value_bits;
  const int32_t landmark_bits = config.landmark_bits;
  check.Positive("config.kv_heads", config.kv_heads)
      .Positive("config.head_dim", config.head_dim)
      .Require(
          config.head_dim % 8 == 0, "config.head_dim", config.head_dim, "must be a multiple of 8")
      .FloatDType("config.dtype", config.dtype)
      .Positive("config.rank", config.rank)
      .Require(chunk == 1 || chunk == 2 || chunk == 4 || chunk == 8,
               "config.chunk_tokens",
               chunk,
               "must be 1, 2, 4 or 8")
      .NotNegative("config.budget_tokens", config.budget_tokens)
      .NotNegative("config.outlier_chunks", config.outlier_chunks)
      .NotNegative("config.local_chunks", config.local_chunks)
      .NotNegative("config.sink_chunks", config.sink_chunks)
      .Require(bits == 2 || bits == 4 || bits == 8 || bits == 16,
               "config.value_bits",
               bits,
               "must be 2, 4, 8 or 16")
      .Require(
          landmark_bits == 16 || (landmark_bits == 8 && config.selector == ShadowKvSelector::kMean),
          "config.landmark_bits",
          landmark_bits,
          "must be 16, or 8 if the selector is kMean")
      .Require(config.value_clusters == 0 || config.selector == ShadowKvSelector::kQ2,
               "config.value_clusters",
               config.value_clusters,
               "must be 0 unless the selector is kQ2")
      .Require(config.value_clusters >= 0 && config.value_clusters <= kShadowKvMaxClusters,
               "config.value_clusters",
               config.value_clusters,
               "must be 0 to 256");
  if (!config.joint) {
    CheckRank(config, 1, check);
  }
}

// A group of layers that share coefficients.
void CheckJointLayers(const ShadowKvConfig& config, int64_t layers, ParamChecker& check) {
  check.Require(config.joint, "config.joint", 0, "must be set")
      .Positive("num_layers", layers)
      .Require(layers * config.width() <= kShadowKvMaxJointWidth,
               "num_layers",
               layers,
               "times kv_heads * head_dim must be at most 4096");
  CheckRank(config, layers, check);
}

void CheckWorkingPages(const ShadowKvConfig& config, const DensePages& pages, ParamChecker& check) {
  check
      .Require(pages.layout.kv_heads == config.kv_heads,
               "pages.layout.kv_heads",
               pages.layout.kv_heads,
               "must be config.kv_heads")
      .Require(pages.layout.head_dim == config.head_dim,
               "pages.layout.head_dim",
               pages.layout.head_dim,
               "must be config.head_dim")
      .Require(pages.layout.dtype == config.dtype,
               "pages.layout.dtype",
               static_cast<int64_t>(pages.layout.dtype),
               "must be config.dtype")
      .Positive("pages.layout.page_tokens", pages.layout.page_tokens)
      .NotNull("pages.base", pages.base);
}

void CheckWorkingPages(const ShadowKvPromptLayout& prompt,
                       const DensePages& pages,
                       ParamChecker& check) {
  check.Positive("layout.prompt_tokens", prompt.prompt_tokens);
  CheckWorkingPages(prompt.config, pages, check);
}

// Of layers that are factored at the same time, each with factors of its own.
void CheckFactored(const ShadowKvConfig& config, int64_t layers, ParamChecker& check) {
  check.Require(!config.joint, "config.joint", 1, "must not be set")
      .Require(
          layers > 0 && layers <= kShadowKvMostFactored, "num_layers", layers, "must be in [1, 8]");
}

void CheckRope(const ShadowKvRope& rope, int64_t positions, ParamChecker& check) {
  check.NotNull("rope.cosines", rope.cosines)
      .NotNull("rope.sines", rope.sines)
      .AtLeast("rope.positions", rope.positions, positions);
}

// `decodes`: the token at the sequence's position is a generated one.
void CheckSequence(const ShadowKvSequence& sequence,
                   const ShadowKvConfig& first,
                   bool decodes,
                   ParamChecker& check) {
  const ShadowKvPromptLayout& layout = *sequence.layout;
  const int64_t least_position = decodes ? layout.prompt_tokens : layout.prompt_tokens - 1;
  CheckConfig(layout.config, check);
  check
      .Require(layout.config.kv_heads == first.kv_heads &&
                   layout.config.head_dim == first.head_dim && layout.config.dtype == first.dtype,
               "config.head_dim",
               layout.config.head_dim,
               "kv_heads, head_dim and dtype must be the same for all sequences")
      .NotNull("sequence prompt", sequence.prompt)
      .NotNull("sequence tail", sequence.tail)
      .NotNegative("sequence row", sequence.row)
      .AtLeast("sequence position", sequence.position, least_position)
      .AtLeast("sequence max_generated",
               sequence.max_generated,
               sequence.position + 1 - layout.prompt_tokens);
  if (layout.config.joint) {
    check.NotNull("sequence joint_prompt", sequence.joint_prompt)
        .NotNull("sequence joint_tail", sequence.joint_tail);
  }
  if (layout.config.values_apart) {
    check.NotNull("sequence value_prompt", sequence.value_prompt)
        .NotNull("sequence value_tail", sequence.value_tail);
  }
}

// True when there are sequences and all of them are sound.
bool CheckSequences(const ShadowKvSequence* sequences,
                    int64_t num_sequences,
                    bool decodes,
                    ParamChecker& check) {
  check.NotNegative("num_sequences", num_sequences);
  if (!check.ok() || num_sequences == 0) {
    return false;
  }
  check.NotNull("sequences", sequences);
  for (int64_t s = 0; check.ok() && s < num_sequences; ++s) {
    check.NotNull("sequence layout", sequences[s].layout);
    if (check.ok()) {
      CheckSequence(sequences[s], sequences[0].layout->config, decodes, check);
    }
  }
  return check.ok();
}

void CheckHeads(int64_t heads, const ShadowKvConfig& config, ParamChecker& check) {
  check.Positive("heads", heads)
      .Require(heads % config.kv_heads == 0, "heads", heads, "must be a multiple of kv_heads");
}

int64_t LargestBudget(const ShadowKvSequence* sequences, int64_t num_sequences) {
  int64_t budget = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    budget = std::max(budget, sequences[s].layout->config.budget_chunks());
  }
  return budget;
}

// Logits of value clusters have a place if any sequence has clusters.
void CheckClusterLogits(const ShadowKvSequence* sequences,
                        int64_t num_sequences,
                        const float* logits,
                        int64_t stride,
                        ParamChecker& check) {
  int64_t clusters = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    clusters = std::max<int64_t>(clusters, sequences[s].layout->config.value_clusters);
  }
  check.AtLeast("cluster_stride", stride, clusters);
  if (clusters > 0) {
    check.NotNull("cluster_logits", logits);
  }
}

int64_t PositionsInUse(const ShadowKvSequence* sequences, int64_t num_sequences) {
  int64_t positions = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    positions = std::max(positions, int64_t{sequences[s].position} + 1);
  }
  return positions;
}

// Selected ids ascend and lie among the coded chunks.
void CheckChunkIds(const ShadowKvAttentionParams& params, ParamChecker& check) {
  for (int64_t s = 0; check.ok() && s < params.num_sequences; ++s) {
    const ShadowKvPromptLayout& layout = *params.sequences[s].layout;
    const int64_t tokens = int64_t{params.sequences[s].position} + 1;
    const int64_t chunks =
        ShadowKvTailLayout(layout, 0).CodedTokensAt(tokens) / layout.config.chunk_tokens;
    for (int64_t head = 0; check.ok() && head < layout.config.kv_heads; ++head) {
      const int32_t* ids =
          params.chunk_ids + (s * layout.config.kv_heads + head) * params.chunk_ids_stride;
      int64_t previous = -1;
      for (int64_t i = 0; check.ok() && i < params.chunk_ids_stride && ids[i] != -1; ++i) {
        check.InRange("chunk_ids", i, ids[i], chunks)
            .Require(
                i < layout.config.budget_chunks(), "chunk_ids count", i + 1, "exceeds the budget")
            .Require(ids[i] > previous, "chunk_ids element", ids[i], "must ascend");
        previous = ids[i];
      }
    }
  }
}

}  // namespace

absl::Status Validate(const ShadowKvEncodeParams& params) {
  ParamChecker check("shadowkv_encode");
  const ShadowKvConfig& config = params.layout.config;
  CheckConfig(config, check);
  CheckWorkingPages(params.layout, params.pages, check);
  check.NotNull("page_table", params.page_table).NotNull("prompt", params.prompt);
  if (config.values_apart) {
    check.NotNull("values", params.values);
  }
  CheckRope(params.rope, params.layout.prompt_tokens, check);
  return check.status();
}

absl::Status Validate(const ShadowKvAddGramsParams& params) {
  ParamChecker check("shadowkv_add_grams");
  CheckConfig(params.config, check);
  CheckWorkingPages(params.config, params.pages, check);
  CheckFactored(params.config, params.num_layers, check);
  check.NotNegative("token_begin", params.token_begin)
      .AtLeast("token_end", params.token_end, params.token_begin + 1);
  for (int64_t i = 0; check.ok() && i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[static_cast<size_t>(i)];
    check.NotNull("layer page_table", layer.page_table).NotNull("layer gram", layer.gram);
  }
  CheckRope(params.rope, params.token_end, check);
  return check.status();
}

absl::Status Validate(const ShadowKvFactorLayersParams& params) {
  ParamChecker check("shadowkv_factor_layers");
  CheckConfig(params.layout.config, check);
  CheckWorkingPages(params.layout, params.pages, check);
  CheckFactored(params.layout.config, params.num_layers, check);
  check.Require(0 <= params.gram_tokens && params.gram_tokens < params.layout.prompt_tokens,
                "gram_tokens",
                params.gram_tokens,
                "must be less than layout.prompt_tokens");
  for (int64_t i = 0; check.ok() && i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[static_cast<size_t>(i)];
    check.NotNull("layer page_table", layer.page_table).NotNull("layer prompt", layer.prompt);
    if (params.gram_tokens > 0) {
      check.NotNull("layer gram", layer.gram);
    }
  }
  CheckRope(params.rope, params.layout.prompt_tokens, check);
  return check.status();
}

absl::Status Validate(const ShadowKvEncodeJointParams& params) {
  ParamChecker check("shadowkv_encode_joint");
  CheckConfig(params.layout.config, check);
  if (check.ok()) {
    CheckJointLayers(params.layout.config, params.num_layers, check);
  }
  CheckWorkingPages(params.layout, params.pages, check);
  check.NotNull("layers", params.layers).NotNull("coefficients", params.coefficients);
  for (int64_t i = 0; check.ok() && i < params.num_layers; ++i) {
    check.NotNull("layer page_table", params.layers[i].page_table)
        .NotNull("layer prompt", params.layers[i].prompt);
  }
  CheckRope(params.rope, params.layout.prompt_tokens, check);
  return check.status();
}

absl::Status Validate(const ShadowKvAppendJointParams& params) {
  ParamChecker check("shadowkv_append_joint");
  check.Positive("num_layers", params.num_layers);
  if (!CheckSequences(params.layers, params.num_layers, /*decodes=*/true, check)) {
    return check.status();
  }
  const ShadowKvSequence& first = params.layers[0];
  CheckJointLayers(first.layout->config, params.num_layers, check);
  for (int64_t i = 1; check.ok() && i < params.num_layers; ++i) {
    const ShadowKvSequence& layer = params.layers[i];
    check
        .Require(layer.layout->config.rank == first.layout->config.rank,
                 "config.rank",
                 layer.layout->config.rank,
                 "must be the same in all layers")
        .Require(layer.position == first.position && layer.joint_tail == first.joint_tail,
                 "layer",
                 i,
                 "must be at the same position of the same sequence");
  }
  CheckRope(params.rope, PositionsInUse(params.layers, params.num_layers), check);
  return check.status();
}

absl::Status Validate(const ShadowKvAppendParams& params) {
  ParamChecker check("shadowkv_append");
  if (!CheckSequences(params.sequences, params.num_sequences, /*decodes=*/true, check)) {
    return check.status();
  }
  const int64_t width = params.sequences[0].layout->config.width();
  check.NotNull("k", params.k)
      .NotNull("v", params.v)
      .AtLeast("k_stride", params.k_stride, width)
      .AtLeast("v_stride", params.v_stride, width);
  CheckRope(params.rope, PositionsInUse(params.sequences, params.num_sequences), check);
  return check.status();
}

absl::Status Validate(const ShadowKvSelectParams& params) {
  ParamChecker check("shadowkv_select");
  if (!CheckSequences(params.sequences, params.num_sequences, /*decodes=*/false, check)) {
    return check.status();
  }
  const ShadowKvConfig& config = params.sequences[0].layout->config;
  CheckHeads(params.heads, config, check);
  check.NotNull("q", params.q)
      .AtLeast("q_stride", params.q_stride, params.heads * config.head_dim)
      .AtLeast("chunk_ids_stride",
               params.chunk_ids_stride,
               LargestBudget(params.sequences, params.num_sequences));
  if (params.chunk_ids_stride > 0) {
    check.NotNull("chunk_ids", params.chunk_ids);
  }
  CheckClusterLogits(
      params.sequences, params.num_sequences, params.cluster_logits, params.cluster_stride, check);
  return check.status();
}

absl::Status Validate(const ShadowKvAttentionParams& params) {
  ParamChecker check("shadowkv_attention");
  if (!CheckSequences(
          params.sequences, params.num_sequences, /*decodes=*/params.lse == nullptr, check)) {
    return check.status();
  }
  const ShadowKvConfig& config = params.sequences[0].layout->config;
  CheckHeads(params.heads, config, check);
  check.NotNull("q", params.q)
      .NotNull("out", params.out)
      .NotNegative("chunk_ids_stride", params.chunk_ids_stride)
      .AtLeast("q_stride", params.q_stride, params.heads * config.head_dim)
      .AtLeast("out_stride", params.out_stride, params.heads * config.head_dim);
  CheckRope(params.rope, PositionsInUse(params.sequences, params.num_sequences), check);
  CheckClusterLogits(
      params.sequences, params.num_sequences, params.cluster_logits, params.cluster_stride, check);
  if (check.ok() && params.chunk_ids_stride > 0) {
    check.NotNull("chunk_ids", params.chunk_ids);
    CheckChunkIds(params, check);
  }
  return check.status();
}

}  // namespace baton::kernels
