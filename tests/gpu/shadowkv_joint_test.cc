// What shadowkv_encode_joint writes on the device: the factorization of one layer as wide as all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_shadowkv_layers.h"
#include "tests/gpu/support/device_shadowkv_prompt.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/gpu/support/shadowkv_basis.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

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
  shape.prompt_tokens = 300;
  shape.key_rank = 80;
  shape.key_bias = 0.5f;
  return shape;
}

class ShadowKvJointGpuTest : public GpuTest {
 protected:
  static constexpr int64_t kLayers = 3;

  // Codes the layers together, and as one layer with all their heads.
  void Check(const ShadowKvShape& shape) const {
    const ShadowKvContext host(ReferenceOps(), 1, shape);
    const ShadowKvProblem wide(ReferenceOps(), *host, shape);
    const ShadowKvJointProblem joint(ReferenceOps(), wide, kLayers);
    const std::vector<std::byte> want = DeviceShadowKvPrompt(wide).Encode(ops(), context());
    const DeviceShadowKvLayers device(joint);
    ASSERT_TRUE(ops().shadowkv_encode_joint(context(), device.params()).ok());
    Wait();
    const std::vector<float> all = BasisOf(wide.layout(), want.data());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      ExpectLayer(joint.layout(), device.prompt(static_cast<size_t>(layer)), layer, all);
    }
    const int64_t tokens = joint.layout().coded.tokens;
    ExpectNear(DecodedCoefficients(joint.layout().config, device.coefficients().data(), tokens),
               DecodedCoefficients(shape.config, want.data() + wide.layout().coded_begin, tokens),
               shape.config.int8_coefficients ? 0.05 : 2e-5);
  }

 private:
  // The layer's part of the basis of `all` heads, and nothing else.
  static void ExpectLayer(const ShadowKvPromptLayout& layout,
                          const std::vector<std::byte>& prompt,
                          int64_t layer,
                          const std::vector<float>& all) {
    const int64_t width = layout.config.width();
    const std::vector<float> basis = BasisOf(layout, prompt.data());
    for (int64_t j = 0; j < layout.config.rank; ++j) {
      ASSERT_EQ(std::memcmp(basis.data() + j * width,
                            all.data() + (j * kLayers + layer) * width,
                            static_cast<size_t>(width) * sizeof(float)),
                0);
    }
    EXPECT_TRUE(std::all_of(prompt.begin() + static_cast<ptrdiff_t>(layout.cluster_values),
                            prompt.end(),
                            [](std::byte x) { return x == std::byte{0xff}; }));
  }
};

TEST_F(ShadowKvJointGpuTest, LayersShareTheFactorizationOfAllTheirHeads) {
  for (const bool int8 : {false, true}) {
    for (const int32_t rank : {20, 100}) {  // iterated and in full
      SCOPED_TRACE(absl::StrCat("rank ", rank, int8 ? " int8" : ""));
      ShadowKvShape shape = WideShape();
      shape.config.int8_coefficients = int8;
      shape.config.rank = rank;
      Check(shape);
    }
  }
}

// For tools that look at every access.
using ShadowKvJointSmallGpuTest = ShadowKvJointGpuTest;

TEST_F(ShadowKvJointSmallGpuTest, LayersShareTheFactorizationOfAllTheirHeads) {
  ShadowKvShape shape = WideShape();
  shape.heads = 6;
  shape.config.kv_heads = 3;
  shape.config.head_dim = 16;
  shape.config.rank = 20;  // more than one layer's width of 16
  shape.config.local_chunks = 8;
  shape.prompt_tokens = 90;
  shape.key_rank = 24;
  Check(shape);
}

TEST_F(ShadowKvJointGpuTest, RefusesLayersThatDoNotFitTogether) {
  const ShadowKvShape shape = WideShape();
  const ShadowKvContext host(ReferenceOps(), 1, shape);
  const ShadowKvProblem wide(ReferenceOps(), *host, shape);
  const ShadowKvJointProblem joint(ReferenceOps(), wide, 3);
  const DeviceShadowKvLayers device(joint);
  const auto code = [&](const auto& change) {
    ShadowKvEncodeJointParams params = device.params();
    change(params);
    return ops().shadowkv_encode_joint(context(), params).code();
  };
  using P = ShadowKvEncodeJointParams;
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](P& p) { p.num_layers = 0; }), bad);
  EXPECT_EQ(code([](P& p) { p.num_layers = 1; }), bad);  // less than the rank
  EXPECT_EQ(code([](P& p) { p.num_layers = 65; }), bad);
  EXPECT_EQ(code([](P& p) { p.layout.config.joint = false; }), bad);
  EXPECT_EQ(code([](P& p) { p.coefficients = nullptr; }), bad);
}

}  // namespace
}  // namespace baton::kernels::cuda
