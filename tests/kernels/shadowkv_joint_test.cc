// Coefficients that several layers share: the same factorization as of one wide layer, and the
// joint code of shadowkv.md 7.3.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

constexpr int64_t kLayers = 3;

// Six heads, two for each layer.
ShadowKvShape WideShape() {
  ShadowKvShape shape;
  shape.heads = 12;
  shape.config.kv_heads = 6;
  shape.config.head_dim = 32;
  shape.config.rank = 100;  // more than one layer's width of 64
  shape.config.dtype = DType::kF32;
  shape.config.chunk_tokens = 1;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.local_chunks = 32;
  shape.config.budget_tokens = 48;
  shape.config.value_clusters = 4;
  shape.prompt_tokens = 300;
  shape.key_rank = 80;
  return shape;
}

std::vector<float> Floats(const std::byte* bytes, int64_t count) {
  std::vector<float> floats(static_cast<size_t>(count));
  std::memcpy(floats.data(), bytes, floats.size() * sizeof(float));
  return floats;
}

// Coefficients of `tokens` tokens as they decode, [tokens][rank].
std::vector<float> Decoded(const ShadowKvConfig& config,
                           const std::byte* coefficients,
                           int64_t tokens) {
  const int64_t count = tokens * config.rank;
  if (!config.int8_coefficients) {
    return Floats(coefficients, count);
  }
  const auto* scales = reinterpret_cast<const uint16_t*>(
      coefficients + ShadowKvCoefficientLayout(config, tokens).scales);
  std::vector<float> decoded;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = i / config.rank / kShadowKvBlockTokens;
    decoded.push_back(static_cast<float>(reinterpret_cast<const int8_t*>(coefficients)[i]) *
                      F16ToF32(scales[group * config.rank + i % config.rank]));
  }
  return decoded;
}

class ShadowKvJointTest : public BackendTest {};

TEST_P(ShadowKvJointTest, LayersShareTheFactorizationOfAllTheirHeads) {
  for (const bool int8 : {false, true}) {
    ShadowKvShape shape = WideShape();
    shape.config.int8_coefficients = int8;
    shape.key_bias = 0.5f;
    const ShadowKvContext context(ops(), 1, shape);
    const ShadowKvProblem wide(ops(), *context, shape);
    const ShadowKvJointProblem joint(ops(), wide, kLayers);
    const ShadowKvConfig& config = joint.layout().config;
    const int64_t width = config.width();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t j = 0; j < config.rank; ++j) {
        const auto row = static_cast<size_t>(j * width) * sizeof(float);
        const auto wide_row = static_cast<size_t>((j * kLayers + layer) * width) * sizeof(float);
        ExpectSameBits(Floats(joint.prompt(layer) + joint.layout().basis + row, width),
                       Floats(wide.prompt() + wide.layout().basis + wide_row, width));
      }
    }
    const int64_t tokens = joint.layout().coded.tokens;
    ExpectNear(Decoded(config, joint.coefficients().data(), tokens),
               Decoded(shape.config, wide.prompt() + wide.layout().coded_begin, tokens),
               int8 ? 0.05 : 2e-5);
  }
}

TEST_P(ShadowKvJointTest, LayersAttendLikeTheWideLayerAlsoToCodedGeneratedTokens) {
  for (const bool int8 : {false, true}) {
    ShadowKvShape shape = WideShape();
    shape.config.int8_coefficients = int8;
    shape.generated_tokens = 200;
    const ShadowKvContext context(ops(), 1, shape);
    ShadowKvProblem wide(ops(), *context, shape);
    ShadowKvJointProblem joint(ops(), wide, kLayers);
    const auto heads = static_cast<ptrdiff_t>(shape.config.kv_heads / kLayers);
    for (int64_t step = 0; step < shape.generated_tokens; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step << " " << SeedMessage());
      wide.Append(ops(), *context);
      joint.Append();
      if (step % 19 != 0 && step + 1 != shape.generated_tokens) {
        continue;
      }
      const std::vector<int32_t> ids = wide.Select(ops(), *context);
      const std::vector<float> out = wide.Attend(ops(), *context, ids);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const ShadowKvStep got = joint.Step(layer);
        const auto first_id = static_cast<ptrdiff_t>(layer * heads * shape.config.budget_chunks());
        const auto first_out = static_cast<ptrdiff_t>(got.out.size()) * layer;
        ASSERT_TRUE(std::equal(got.chunk_ids.begin(), got.chunk_ids.end(), ids.begin() + first_id));
        ExpectNear(got.out,
                   std::span(out).subspan(static_cast<size_t>(first_out), got.out.size()),
                   int8 ? 0.02 : 5e-5);
      }
    }
    EXPECT_EQ(ShadowKvTailLayout(joint.layout(), 0).BlocksAt(wide.tokens()), 2);
  }
}

TEST_P(ShadowKvJointTest, ThreadsDoNotChangeABit) {
  ShadowKvShape shape = WideShape();
  shape.config.dtype = DType::kBF16;
  const ShadowKvContext context(ops(), 1, shape);
  const ShadowKvProblem wide(ops(), *context, shape);
  const ShadowKvJointProblem joint(ops(), wide, kLayers);
  const TestContext one(ops(), 1, joint.context().workspace->size());
  std::vector<ShadowKvJointLayer> layers = joint.Layers();
  std::vector<Buffer> prompts;
  for (ShadowKvJointLayer& layer : layers) {
    prompts.emplace_back(joint.layout().bytes);
    layer.prompt = prompts.back().data();
  }
  Buffer coefficients(joint.coefficients().size());
  ASSERT_TRUE(
      ops().shadowkv_encode_joint(*one, joint.EncodeParams(layers, coefficients.data())).ok());
  EXPECT_EQ(std::memcmp(coefficients.data(), joint.coefficients().data(), coefficients.size()), 0);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(std::memcmp(prompts[static_cast<size_t>(layer)].data(),
                          joint.prompt(layer),
                          joint.layout().cluster_values),
              0);
  }
}

TEST_P(ShadowKvJointTest, WhatDoesNotFitTogetherIsRefused) {
  const ShadowKvShape shape = WideShape();
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvShape with_tail = shape;
  with_tail.generated_tokens = 1;
  ShadowKvProblem wide(ops(), *context, with_tail);
  wide.Append(ops(), *context);
  const ShadowKvJointProblem joint(ops(), wide, kLayers);
  const std::vector<ShadowKvJointLayer> layers = joint.Layers();
  Buffer coefficients(joint.coefficients().size());
  const auto encode = [&](auto&& change) {
    ShadowKvEncodeJointParams params = joint.EncodeParams(layers, coefficients.data());
    change(params);
    return ops().shadowkv_encode_joint(joint.context(), params).code();
  };
  using Params = ShadowKvEncodeJointParams;
  const absl::StatusCode refused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(encode([](Params&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(encode([](Params& p) { p.num_layers = 0; }), refused);
  EXPECT_EQ(encode([](Params& p) { p.num_layers = 1; }), refused);  // less than the rank
  EXPECT_EQ(encode([](Params& p) { p.num_layers = 65; }), refused);
  EXPECT_EQ(encode([](Params& p) { p.layout.config.joint = false; }), refused);
  EXPECT_EQ(encode([](Params& p) { p.coefficients = nullptr; }), refused);
  std::vector<ShadowKvSequence> sequences;
  for (int64_t i = 0; i < kLayers; ++i) {
    sequences.push_back(joint.Sequence(i));
  }
  const auto append = [&](auto&& change) {
    std::vector<ShadowKvSequence> changed = sequences;
    change(changed.back());
    return ops().shadowkv_append_joint(joint.context(), joint.AppendParams(changed)).code();
  };
  EXPECT_EQ(append([](ShadowKvSequence&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(append([](ShadowKvSequence& s) { --s.position; }), refused);
  EXPECT_EQ(append([](ShadowKvSequence& s) { s.joint_tail = nullptr; }), refused);
  EXPECT_EQ(append([](ShadowKvSequence& s) { s.joint_prompt = nullptr; }), refused);
}

INSTANTIATE_TEST_SUITE_P(Backends, ShadowKvJointTest, testing::ValuesIn(kBackends));

}  // namespace
}  // namespace baton::kernels
