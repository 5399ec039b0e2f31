#include "tests/kernels/support/shadowkv_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

size_t WorkspaceBytes(const OpTable& ops, int threads, const ShadowKvShape& shape) {
  return ops.shadowkv_workspace_bytes(threads,
                                      {.config = shape.config,
                                       .heads = shape.heads,
                                       .max_tokens = shape.prompt_tokens + shape.generated_tokens});
}

std::vector<float> Normal(std::mt19937& random, int64_t count, float scale) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return scale * normal(random); });
  return values;
}

// Bytes that nothing has written.
Buffer Dirty(size_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.data(), 0xff, bytes);
  return buffer;
}

}  // namespace

ShadowKvConfig LosslessConfig(const ShadowKvConfig& config) {
  ShadowKvConfig lossless = config;
  lossless.rank = static_cast<int32_t>(config.width());
  lossless.value_bits = 16;
  lossless.int8_coefficients = false;
  lossless.dtype = DType::kF32;
  return lossless;
}

ShadowKvContext::ShadowKvContext(const OpTable& ops, int threads, const ShadowKvShape& shape)
    : context_(ops, threads, WorkspaceBytes(ops, threads, shape)) {}

ShadowKvProblem::ShadowKvProblem(const OpTable& ops,
                                 const ExecContext& context,
                                 const ShadowKvShape& shape)
    : shape_(shape), layout_(shape.config, shape.prompt_tokens) {
  const ShadowKvConfig& config = shape_.config;
  MakeTokens();
  pages_layout_ = {.page_tokens = shape_.page_tokens,
                   .kv_heads = config.kv_heads,
                   .head_dim = config.head_dim,
                   .dtype = config.dtype};
  page_table_.resize(
      static_cast<size_t>(pages_layout_.pages_for(shape_.prompt_tokens + shape_.generated_tokens)));
  std::iota(page_table_.rbegin(), page_table_.rend(), 0);
  pages_ = Buffer(pages_layout_.stride_bytes() * page_table_.size());
  tokens_ = shape_.prompt_tokens;
  WriteDense(ops, context, 0, tokens_);
  const ShadowKvTailLayout tail = tail_layout();
  prompt_ = Dirty(layout_.bytes);
  tail_ = Dirty(tail.bytes);
  value_prompt_ = Dirty(layout_.coded.value_bytes + 1);
  value_tail_ = Dirty(tail.value_block_begin(tail.block_count) + 1);
  const ShadowKvCacheLayout cache(config, ShadowKvCachedValues::kDequantized);
  cache_ = Buffer(cache.bytes);
  std::ranges::fill(cache_.bytes().subspan(cache.slots), std::byte{0xff});
  const absl::Status status = ops.shadowkv_encode(context, EncodeParams(prompt_.data()));
  EXPECT_TRUE(status.ok()) << status;
}

void ShadowKvProblem::MakeTokens() {
  const ShadowKvConfig& config = shape_.config;
  const int64_t width = config.width();
  const int64_t count = shape_.prompt_tokens + shape_.generated_tokens;
  std::mt19937 random(TestSeed());
  std::vector<float> inverse_frequencies(static_cast<size_t>(config.head_dim / 2));
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), 0);
  const int64_t half = config.head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    inverse_frequencies[static_cast<size_t>(i)] =
        std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
  }
  cosines_.resize(static_cast<size_t>(count * half));
  sines_.resize(cosines_.size());
  const OpTable& ops = ReferenceOps();
  const TestContext one(ops, 1);
  EXPECT_TRUE(ops.rope_angles(*one,
                              {.positions = positions.data(),
                               .inverse_frequencies = inverse_frequencies.data(),
                               .rows = count,
                               .half_dim = half,
                               .cosines = cosines_.data(),
                               .sines = sines_.data()})
                  .ok());
  const std::vector<float> factors = Normal(random, count * shape_.key_rank, 1.0f);
  const std::vector<float> directions = Normal(random, shape_.key_rank * width, 0.5f);
  factored_ = Normal(random, count * width, shape_.key_noise);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < shape_.key_rank; ++j) {
      for (int64_t i = 0; i < width; ++i) {
        factored_[static_cast<size_t>(t * width + i)] +=
            factors[static_cast<size_t>(t * shape_.key_rank + j)] *
            directions[static_cast<size_t>(j * width + i)];
      }
    }
  }
  if (shape_.key_bias != 0.0f) {
    bias_ = Normal(random, width, shape_.key_bias);
  }
  keys_ = factored_;
  for (size_t i = 0; !bias_.empty() && i < keys_.size(); ++i) {
    keys_[i] += bias_[i % bias_.size()];
  }
  EXPECT_TRUE(ops.rope(*one,
                       {.x = keys_.data(),
                        .x_stride = width,
                        .cosines = cosines_.data(),
                        .sines = sines_.data(),
                        .rows = count,
                        .heads = config.kv_heads,
                        .half_dim = half})
                  .ok());
  keys_ = RoundedTo(keys_, config.dtype);
  values_ = RoundedTo(Normal(random, count * width, 1.0f), config.dtype);
  for (int64_t t = shape_.value_kinds; shape_.value_kinds > 0 && t < count; ++t) {
    const auto kind = static_cast<int64_t>(random() % static_cast<uint32_t>(shape_.value_kinds));
    std::copy_n(values_.begin() + kind * width, width, values_.begin() + t * width);
  }
  queries_ = Normal(random, shape_.generated_tokens * shape_.heads * config.head_dim, 0.7f);
}

void ShadowKvProblem::WriteDense(const OpTable& ops,
                                 const ExecContext& context,
                                 int64_t first,
                                 int64_t count) {
  const int64_t width = shape_.config.width();
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
  const SequenceRows rows = {
      .row_begin = 0, .row_count = static_cast<int32_t>(count), .page_table = page_table_.data()};
  const absl::Status status =
      ops.kv_write(context,
                   {.k = key(first),
                    .k_stride = width,
                    .v = value(first),
                    .v_stride = width,
                    .positions = positions.data(),
                    .sequences = &rows,
                    .num_sequences = 1,
                    .pages = {.base = pages_.data(), .layout = pages_layout_}});
  EXPECT_TRUE(status.ok()) << status;
}

void ShadowKvProblem::Append(const OpTable& ops, const ExecContext& context) {
  WriteDense(ops, context, tokens_, 1);
  ++tokens_;
  const ShadowKvSequence sequence = Sequence();
  const absl::Status status = ops.shadowkv_append(context,
                                                  {.k = key(tokens_ - 1),
                                                   .k_stride = shape_.config.width(),
                                                   .v = value(tokens_ - 1),
                                                   .v_stride = shape_.config.width(),
                                                   .sequences = &sequence,
                                                   .num_sequences = 1,
                                                   .rope = rope(),
                                                   .key_bias = key_bias()});
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<int32_t> ShadowKvProblem::Select(const OpTable& ops, const ExecContext& context) const {
  const ShadowKvConfig& config = shape_.config;
  std::vector<int32_t> ids(static_cast<size_t>(config.kv_heads * config.budget_chunks()), -7);
  cluster_logits_.assign(static_cast<size_t>(shape_.heads * config.value_clusters), NAN);
  const ShadowKvSequence sequence = Sequence();
  const absl::Status status =
      ops.shadowkv_select(context,
                          {.q = query(),
                           .q_stride = shape_.heads * config.head_dim,
                           .sequences = &sequence,
                           .num_sequences = 1,
                           .heads = shape_.heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                           .chunk_ids = ids.data(),
                           .chunk_ids_stride = config.budget_chunks(),
                           .cluster_logits = cluster_logits_.data(),
                           .cluster_stride = config.value_clusters});
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

std::vector<float> ShadowKvProblem::Attend(const OpTable& ops,
                                           const ExecContext& context,
                                           const std::vector<int32_t>& chunk_ids,
                                           ShadowKvCounters* counters) const {
  const ShadowKvConfig& config = shape_.config;
  std::vector<float> out(static_cast<size_t>(shape_.heads * config.head_dim), NAN);
  ShadowKvSequence sequence = Sequence();
  sequence.counters = counters;
  const absl::Status status =
      ops.shadowkv_attention(context,
                             {.q = query(),
                              .q_stride = shape_.heads * config.head_dim,
                              .sequences = &sequence,
                              .num_sequences = 1,
                              .heads = shape_.heads,
                              .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                              .chunk_ids = chunk_ids.data(),
                              .chunk_ids_stride = config.budget_chunks(),
                              .cluster_logits = cluster_logits_.data(),
                              .cluster_stride = config.value_clusters,
                              .rope = rope(),
                              .key_bias = key_bias(),
                              .out = out.data(),
                              .out_stride = shape_.heads * config.head_dim});
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

ShadowKvStep ShadowKvProblem::Step(const OpTable& ops, const ExecContext& context) {
  Append(ops, context);
  ShadowKvStep step;
  step.chunk_ids = Select(ops, context);
  step.out = Attend(ops, context, step.chunk_ids, &step.counters);
  return step;
}

std::vector<float> ShadowKvProblem::AttendDense(const OpTable& ops,
                                                const ExecContext& context) const {
  const ShadowKvConfig& config = shape_.config;
  std::vector<float> out(static_cast<size_t>(shape_.heads * config.head_dim), NAN);
  const auto position = static_cast<int32_t>(tokens_ - 1);
  const SequenceRows rows = {.row_begin = 0, .row_count = 1, .page_table = page_table_.data()};
  const absl::Status status = ops.paged_attention(
      context,
      {.q = query(),
       .q_stride = shape_.heads * config.head_dim,
       .positions = &position,
       .sequences = &rows,
       .num_sequences = 1,
       .pages = {.base = const_cast<std::byte*>(pages_.data()), .layout = pages_layout_},
       .heads = shape_.heads,
       .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
       .out = out.data(),
       .out_stride = shape_.heads * config.head_dim});
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

void ShadowKvProblem::TakeBytes(const ShadowKvProblem& other) {
  ASSERT_EQ(prompt_.size(), other.prompt_.size());
  ASSERT_EQ(tail_.size(), other.tail_.size());
  std::memcpy(prompt_.data(), other.prompt_.data(), prompt_.size());
  std::memcpy(tail_.data(), other.tail_.data(), tail_.size());
  std::memcpy(value_prompt_.data(), other.value_prompt_.data(), value_prompt_.size());
  std::memcpy(value_tail_.data(), other.value_tail_.data(), value_tail_.size());
  tokens_ = other.tokens_;
}

ShadowKvSequence ShadowKvProblem::Sequence() const {
  return {.layout = &layout_,
          .prompt = prompt_.data(),
          .tail = const_cast<std::byte*>(tail_.data()),
          .max_generated = shape_.generated_tokens,
          .position = static_cast<int32_t>(tokens_ - 1),
          .cache = use_cache_ ? cache_.data() : nullptr,
          .value_prompt = value_prompt_.data(),
          .value_tail = const_cast<std::byte*>(value_tail_.data())};
}

ShadowKvRope ShadowKvProblem::rope() const {
  return {.cosines = cosines_.data(),
          .sines = sines_.data(),
          .positions = shape_.prompt_tokens + shape_.generated_tokens};
}

ShadowKvEncodeParams ShadowKvProblem::EncodeParams(std::byte* prompt) const {
  return {.layout = layout_,
          .pages = {.base = const_cast<std::byte*>(pages_.data()), .layout = pages_layout_},
          .page_table = page_table_.data(),
          .rope = rope(),
          .key_bias = key_bias(),
          .prompt = prompt,
          .values = const_cast<std::byte*>(value_prompt_.data())};
}

const float* ShadowKvProblem::query() const {
  const int64_t row = tokens_ - 1 - shape_.prompt_tokens;
  return queries_.data() + row * shape_.heads * shape_.config.head_dim;
}

const float* ShadowKvProblem::factored_key(int64_t token) const {
  return factored_.data() + token * shape_.config.width();
}
const float* ShadowKvProblem::key(int64_t token) const {
  return keys_.data() + token * shape_.config.width();
}
const float* ShadowKvProblem::value(int64_t token) const {
  return values_.data() + token * shape_.config.width();
}

}  // namespace baton::kernels
