// Layers that are factored at the same time: the bytes of each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_shadowkv_layers.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/gpu/support/shadowkv_basis.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

constexpr int64_t kLayers = 2;

class ShadowKvFactorLayersGpuTest : public GpuTest {
 protected:
  // Two layers of 144 columns.
  static ShadowKvShape Shape(DType dtype) {
    ShadowKvShape shape;
    shape.heads = 6;
    shape.config.kv_heads = 6;
    shape.config.head_dim = 48;
    shape.config.rank = 8;
    shape.config.dtype = dtype;
    shape.config.chunk_tokens = 1;
    shape.config.selector = ShadowKvSelector::kQ2;
    shape.config.local_chunks = 32;
    shape.prompt_tokens = 150;
    shape.key_rank = 12;
    shape.key_bias = 0.5f;
    return shape;
  }

  static ShadowKvPromptLayout LayoutOf(const ShadowKvJointProblem& joint) {
    ShadowKvConfig config = joint.layout().config;
    config.joint = false;
    return {config, joint.layout().prompt_tokens};
  }

  // Layers to be factored, on the device.
  struct Subject {
    explicit Subject(DType dtype)
        : shape(Shape(dtype)),
          host(ReferenceOps(), 1, shape),
          wide(ReferenceOps(), *host, shape),
          joint(ReferenceOps(), wide, kLayers),
          layout(LayoutOf(joint)),
          device(joint, layout.bytes) {}

    const ShadowKvShape shape;
    const ShadowKvContext host;
    const ShadowKvProblem wide;
    const ShadowKvJointProblem joint;
    const ShadowKvPromptLayout layout;
    const DeviceShadowKvLayers device;
  };

  static ShadowKvFactorLayersParams Params(const DeviceShadowKvLayers& device,
                                           const ShadowKvPromptLayout& layout) {
    const ShadowKvEncodeParams first = device.params(layout, 0);
    ShadowKvFactorLayersParams params = {
        .layout = layout, .pages = first.pages, .num_layers = kLayers, .rope = first.rope};
    for (size_t i = 0; i < device.layers(); ++i) {
      const ShadowKvEncodeParams layer = device.params(layout, i);
      params.layers[i] = {
          .page_table = layer.page_table, .key_bias = layer.key_bias, .prompt = layer.prompt};
    }
    return params;
  }

  DeviceArray<double> Sums(const ShadowKvFactorLayersParams& params,
                           const std::vector<int64_t>& bounds) const;

  std::vector<std::byte> Encode(const DeviceShadowKvLayers& device,
                                const ShadowKvPromptLayout& layout,
                                size_t layer,
                                bool factored) const {
    ShadowKvEncodeParams params = device.params(layout, layer);
    params.factored = factored;
    const absl::Status status = ops().shadowkv_encode(context(), params);
    EXPECT_TRUE(status.ok()) << status;
    Wait();
    return device.prompt(layer);
  }
};

// Factors and the rest in both orders; in turns, since what comes again is launched as a graph.
TEST_F(ShadowKvFactorLayersGpuTest, EachLayerHasTheBytesThatItHasByItself) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(absl::StrCat(DTypeBytes(dtype), " bytes"));
    const Subject subject(dtype);
    const ShadowKvPromptLayout& layout = subject.layout;
    const DeviceShadowKvLayers& device = subject.device;
    std::vector<std::vector<std::byte>> want;
    want.reserve(device.layers());
    for (size_t layer = 0; layer < device.layers(); ++layer) {
      want.push_back(Encode(device, layout, layer, /*factored=*/false));
    }
    EXPECT_NE(want.front(), want.back());
    for (int turn = 0; turn < 3; ++turn) {
      for (size_t layer = 0; layer < device.layers(); ++layer) {
        device.Poison(layer);
        if (turn == 1) Encode(device, layout, layer, /*factored=*/true);
      }
      const absl::Status status = ops().shadowkv_factor_layers(context(), Params(device, layout));
      ASSERT_TRUE(status.ok()) << status;
      Wait();
      for (size_t layer = 0; layer < device.layers(); ++layer) {
        const std::vector<std::byte> got =
            turn == 1 ? device.prompt(layer) : Encode(device, layout, layer, /*factored=*/true);
        EXPECT_EQ(got, want[layer])
            << "layer " << layer << ", turn " << turn << ", " << SeedMessage();
      }
    }
  }
}

// Numbers of the layers' sums, which calls over the tokens between neighbouring bounds add up.
DeviceArray<double> ShadowKvFactorLayersGpuTest::Sums(const ShadowKvFactorLayersParams& params,
                                                      const std::vector<int64_t>& bounds) const {
  const int64_t numbers = ops().shadowkv_gram_numbers(params.layout.config.width());
  DeviceArray<double> sums =
      DeviceArray<double>::Poisoned(static_cast<size_t>(params.num_layers * numbers));
  ShadowKvAddGramsParams added = {.config = params.layout.config,
                                  .pages = params.pages,
                                  .layers = params.layers,
                                  .num_layers = params.num_layers,
                                  .rope = params.rope};
  for (int64_t i = 0; i < params.num_layers; ++i) {
    added.layers[static_cast<size_t>(i)].gram = sums.data() + i * numbers;
  }
  for (const int64_t bound : bounds) {
    added.token_begin = std::exchange(added.token_end, bound);
    const absl::Status status = ops().shadowkv_add_grams(context(), added);
    EXPECT_TRUE(status.ok()) << status;
  }
  Wait();
  return sums;
}

// By fp32 sums of so many products.
void ExpectSameSums(const DeviceArray<double>& got, const DeviceArray<double>& want) {
  const std::vector<double> a = got.Get();
  const std::vector<double> b = want.Get();
  const double most = std::ranges::max(b);
  EXPECT_GT(most, 0.0);
  for (size_t i = 0; i < b.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], 1e-5 * most) << "number " << i << ", " << SeedMessage();
  }
}

TEST_F(ShadowKvFactorLayersGpuTest, FactorsOfSumsAddedBeforeAreThoseOfAllTokens) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(absl::StrCat(DTypeBytes(dtype), " bytes"));
    const Subject subject(dtype);
    const ShadowKvPromptLayout& layout = subject.layout;
    const DeviceShadowKvLayers& device = subject.device;
    ShadowKvFactorLayersParams params = Params(device, layout);
    ExpectSameSums(Sums(params, {37, 112, 150}), Sums(params, {150}));
    std::vector<std::vector<float>> want;
    for (const int64_t before : {0, 112}) {
      const DeviceArray<double> sums = Sums(params, {37, 112});
      params.gram_tokens = before;
      for (size_t layer = 0; layer < device.layers(); ++layer) {
        params.layers[layer].gram = sums.data() + layer * sums.size() / device.layers();
        device.Poison(layer);
      }
      const absl::Status status = ops().shadowkv_factor_layers(context(), params);
      ASSERT_TRUE(status.ok()) << status;
      Wait();
      for (size_t layer = 0; layer < device.layers(); ++layer) {
        const std::vector<float> basis = BasisOf(layout, device.prompt(layer).data());
        if (before == 0) {
          want.push_back(basis);
          continue;
        }
        EXPECT_THAT(basis, testing::Pointwise(testing::FloatNear(2e-3f), want[layer]))
            << "layer " << layer << ", " << SeedMessage();
      }
    }
  }
}

// 384 columns: slabs of 21,840 tokens, beginning inside of a page.
TEST_F(ShadowKvFactorLayersGpuTest, LongPromptsAreAddedUpSlabBySlab) {
  constexpr int64_t kTokens = 22000;
  constexpr int64_t kHalf = 64;
  ShadowKvConfig config;
  config.kv_heads = 3;
  config.head_dim = 2 * kHalf;
  config.rank = 8;
  config.dtype = DType::kBF16;
  const DensePageLayout pages = {.page_tokens = 32,
                                 .kv_heads = config.kv_heads,
                                 .head_dim = config.head_dim,
                                 .dtype = config.dtype};
  const int32_t count = pages.pages_for(kTokens);
  std::mt19937 random(TestSeed());
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count) * pages.stride_bytes() / sizeof(uint16_t));
  std::ranges::generate(numbers, [&] { return normal(random); });
  const DeviceArray<uint16_t> memory = Activations(numbers);
  std::vector<int32_t> table(static_cast<size_t>(count));
  std::iota(table.rbegin(), table.rend(), 0);
  const DeviceArray<int32_t> device_table(table);
  std::vector<float> cosines(static_cast<size_t>(kTokens * kHalf));
  std::vector<float> sines(cosines.size());
  for (size_t i = 0; i < cosines.size(); ++i) {
    cosines[i] = std::cos(static_cast<float>(i % 1000));
    sines[i] = std::sin(static_cast<float>(i % 1000));
  }
  const DeviceArray<float> device_cosines(cosines);
  const DeviceArray<float> device_sines(sines);
  ShadowKvFactorLayersParams params = {
      .layout = {config, kTokens},
      .pages = {.base = reinterpret_cast<std::byte*>(memory.data()), .layout = pages},
      .num_layers = 1,
      .rope = {
          .cosines = device_cosines.data(), .sines = device_sines.data(), .positions = kTokens}};
  params.layers[0].page_table = device_table.data();
  ExpectSameSums(Sums(params, {kTokens}), Sums(params, {9001, 18000, kTokens}));
}

TEST_F(ShadowKvFactorLayersGpuTest, ASmallWorkspaceAndLargeRanksAreRefused) {
  const Subject subject(DType::kBF16);
  const ShadowKvPromptLayout& layout = subject.layout;
  const DeviceShadowKvLayers& device = subject.device;
  ShadowKvFactorLayersParams params = Params(device, layout);
  const size_t needed = ops().shadowkv_workspace_bytes(1,
                                                       {.config = layout.config,
                                                        .heads = layout.config.kv_heads,
                                                        .max_tokens = layout.prompt_tokens,
                                                        .factored = kLayers});
  for (const size_t bytes : {needed, size_t{4096}}) {
    const absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(bytes);
    ASSERT_TRUE(queue.ok()) << queue.status();
    ExecContext own = context();
    own.queue = queue->get();
    const absl::Status status = ops().shadowkv_factor_layers(own, params);
    EXPECT_EQ(status.code(),
              bytes == needed ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
        << status;
    EXPECT_TRUE((*queue)->Wait().ok());
  }
  params.layout.config.rank =
      static_cast<int32_t>(ops().shadowkv_factored_rank(layout.config.width())) + 1;
  EXPECT_EQ(ops().shadowkv_factor_layers(context(), params).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::cuda
