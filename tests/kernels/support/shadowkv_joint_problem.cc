#include "tests/kernels/support/shadowkv_joint_problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

constexpr int kThreads = 2;
constexpr int32_t kPageTokens = 16;

ShadowKvPromptLayout LayoutOf(const ShadowKvProblem& wide, int64_t layers) {
  ShadowKvConfig config = wide.shape().config;
  config.kv_heads /= static_cast<int32_t>(layers);
  config.joint = true;
  return {config, wide.shape().prompt_tokens};
}

size_t WorkspaceBytes(const OpTable& ops,
                      const ShadowKvProblem& wide,
                      const ShadowKvPromptLayout& layout,
                      int64_t layers) {
  const ShadowKvShape& shape = wide.shape();
  return ops.shadowkv_workspace_bytes(kThreads,
                                      {.config = layout.config,
                                       .heads = shape.heads / layers,
                                       .max_tokens = shape.prompt_tokens + shape.generated_tokens,
                                       .layers = layers});
}

Buffer Dirty(size_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.data(), 0xff, bytes);
  return buffer;
}

}  // namespace

ShadowKvJointProblem::ShadowKvJointProblem(const OpTable& ops,
                                           const ShadowKvProblem& wide,
                                           int64_t layers)
    : ops_(ops),
      wide_(wide),
      layers_(layers),
      layout_(LayoutOf(wide, layers)),
      context_(ops, kThreads, WorkspaceBytes(ops, wide, layout_, layers)) {
  const ShadowKvTailLayout tail(layout_, wide.shape().generated_tokens);
  pages_layout_ = {.page_tokens = kPageTokens,
                   .kv_heads = layout_.config.kv_heads,
                   .head_dim = layout_.config.head_dim,
                   .dtype = layout_.config.dtype};
  const auto pages = static_cast<int32_t>(pages_layout_.pages_for(layout_.prompt_tokens));
  pages_ = Buffer(pages_layout_.stride_bytes() * static_cast<size_t>(pages * layers));
  for (int64_t i = 0; i < layers; ++i) {
    page_tables_.emplace_back(static_cast<size_t>(pages));
    std::iota(
        page_tables_.back().rbegin(), page_tables_.back().rend(), static_cast<int32_t>(i) * pages);
    biases_.push_back(bias(i));
    prompts_.push_back(Dirty(layout_.bytes));
    tails_.push_back(Dirty(tail.bytes));
    caches_.emplace_back(
        ShadowKvCacheLayout(layout_.config, ShadowKvCachedValues::kDequantized).bytes);
    WriteDense(i);
  }
  coefficients_ = Dirty(ShadowKvCoefficientLayout(layout_.config, layout_.coded.tokens).bytes);
  tail_coefficients_ = Dirty(tail.joint_block_begin(tail.block_count) + 1);
  Encode();
}

const float* ShadowKvJointProblem::bias(int64_t layer) const {
  return wide_.key_bias() == nullptr ? nullptr : wide_.key_bias() + layer * width();
}

void ShadowKvJointProblem::WriteDense(int64_t layer) {
  std::vector<int32_t> positions(static_cast<size_t>(layout_.prompt_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  const SequenceRows rows = {.row_begin = 0,
                             .row_count = static_cast<int32_t>(positions.size()),
                             .page_table = page_tables_[static_cast<size_t>(layer)].data()};
  const int64_t stride = layers_ * width();
  const absl::Status status =
      ops_.kv_write(*context_,
                    {.k = wide_.key(0) + layer * width(),
                     .k_stride = stride,
                     .v = wide_.value(0) + layer * width(),
                     .v_stride = stride,
                     .positions = positions.data(),
                     .sequences = &rows,
                     .num_sequences = 1,
                     .pages = {.base = pages_.data(), .layout = pages_layout_}});
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<ShadowKvJointLayer> ShadowKvJointProblem::Layers() const {
  std::vector<ShadowKvJointLayer> layers;
  layers.reserve(static_cast<size_t>(layers_));
  for (int64_t i = 0; i < layers_; ++i) {
    layers.push_back({.page_table = page_tables_[static_cast<size_t>(i)].data(),
                      .key_bias = bias(i),
                      .prompt = At(prompts_, i)});
  }
  return layers;
}

ShadowKvEncodeJointParams ShadowKvJointProblem::EncodeParams(
    std::span<const ShadowKvJointLayer> layers, std::byte* coefficients) const {
  return {.layout = layout_,
          .pages = {.base = const_cast<std::byte*>(pages_.data()), .layout = pages_layout_},
          .layers = layers.data(),
          .num_layers = static_cast<int64_t>(layers.size()),
          .rope = wide_.rope(),
          .coefficients = coefficients};
}

void ShadowKvJointProblem::Encode() {
  const std::vector<ShadowKvJointLayer> layers = Layers();
  absl::Status status =
      ops_.shadowkv_encode_joint(*context_, EncodeParams(layers, coefficients_.data()));
  EXPECT_TRUE(status.ok()) << status;
  for (const ShadowKvJointLayer& layer : layers) {
    status = ops_.shadowkv_encode(*context_,
                                  {.layout = layout_,
                                   .pages = {.base = pages_.data(), .layout = pages_layout_},
                                   .page_table = layer.page_table,
                                   .rope = wide_.rope(),
                                   .key_bias = layer.key_bias,
                                   .prompt = layer.prompt});
    EXPECT_TRUE(status.ok()) << status;
  }
}

ShadowKvSequence ShadowKvJointProblem::Sequence(int64_t layer) const {
  return {.layout = &layout_,
          .prompt = At(prompts_, layer),
          .tail = At(tails_, layer),
          .max_generated = wide_.shape().generated_tokens,
          .position = static_cast<int32_t>(wide_.tokens() - 1),
          .cache = At(caches_, layer),
          .joint_prompt = coefficients_.data(),
          .joint_tail = const_cast<std::byte*>(tail_coefficients_.data())};
}

ShadowKvAppendJointParams ShadowKvJointProblem::AppendParams(
    std::span<const ShadowKvSequence> layers) const {
  return {.layers = layers.data(),
          .key_bias = biases_.data(),
          .num_layers = static_cast<int64_t>(layers.size()),
          .rope = wide_.rope()};
}

void ShadowKvJointProblem::Append() {
  std::vector<ShadowKvSequence> sequences;
  for (int64_t i = 0; i < layers_; ++i) {
    sequences.push_back(Sequence(i));
    const absl::Status status =
        ops_.shadowkv_append(*context_,
                             {.k = wide_.key(wide_.tokens() - 1) + i * width(),
                              .k_stride = width(),
                              .v = wide_.value(wide_.tokens() - 1) + i * width(),
                              .v_stride = width(),
                              .sequences = &sequences.back(),
                              .num_sequences = 1,
                              .rope = wide_.rope(),
                              .key_bias = bias(i)});
    EXPECT_TRUE(status.ok()) << status;
  }
  const absl::Status status = ops_.shadowkv_append_joint(*context_, AppendParams(sequences));
  EXPECT_TRUE(status.ok()) << status;
}

ShadowKvStep ShadowKvJointProblem::Step(int64_t layer) {
  const ShadowKvConfig& config = layout_.config;
  const int64_t heads = wide_.shape().heads / layers_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const float* q = wide_.query() + layer * heads * config.head_dim;
  ShadowKvStep step;
  ShadowKvSequence sequence = Sequence(layer);
  sequence.counters = &step.counters;
  step.chunk_ids.resize(static_cast<size_t>(config.kv_heads * config.budget_chunks()));
  step.out.resize(static_cast<size_t>(heads * config.head_dim));
  std::vector<float> logits(static_cast<size_t>(heads * config.value_clusters));
  absl::Status status = ops_.shadowkv_select(*context_,
                                             {.q = q,
                                              .q_stride = heads * config.head_dim,
                                              .sequences = &sequence,
                                              .num_sequences = 1,
                                              .heads = heads,
                                              .scale = scale,
                                              .chunk_ids = step.chunk_ids.data(),
                                              .chunk_ids_stride = config.budget_chunks(),
                                              .cluster_logits = logits.data(),
                                              .cluster_stride = config.value_clusters});
  EXPECT_TRUE(status.ok()) << status;
  status = ops_.shadowkv_attention(*context_,
                                   {.q = q,
                                    .q_stride = heads * config.head_dim,
                                    .sequences = &sequence,
                                    .num_sequences = 1,
                                    .heads = heads,
                                    .scale = scale,
                                    .chunk_ids = step.chunk_ids.data(),
                                    .chunk_ids_stride = config.budget_chunks(),
                                    .cluster_logits = logits.data(),
                                    .cluster_stride = config.value_clusters,
                                    .rope = wide_.rope(),
                                    .key_bias = bias(layer),
                                    .out = step.out.data(),
                                    .out_stride = heads * config.head_dim});
  EXPECT_TRUE(status.ok()) << status;
  return step;
}

}  // namespace baton::kernels
