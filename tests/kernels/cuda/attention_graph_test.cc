// cuDNN's support for every attention graph that prefill asks for, checked without a device: cuDNN
// takes a description of an H200 in its place (performance.md, appendix A), chooses an engine and
// compiles the kernel; only loading it needs a driver.
#include "kernels/cuda/cudnn/attention_graph.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"
#include "kernels/kv_format/dense.h"

namespace baton::kernels::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::TestWithParam;

// One line of cuDNN's own schema.
std::string H200(size_t version) {
  return absl::StrCat(
      R"({"cudaDeviceId":0,"deviceName":"NVIDIA H200","deviceVer":900,"driverVer":13000,)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":150754820096,"smClockRateKHz":1980000,)"
      R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"cudnnVersion":)",
      version,
      R"(,"schemaVersion":1})");
}

// cuDNN with the stand-in for the driver; null where cuDNN is not installed.
std::shared_ptr<const CudnnApi> Cudnn() {
  static const std::shared_ptr<const CudnnApi>& api = *new std::shared_ptr<const CudnnApi>([] {
    // Found by its soname from now on.
    static_cast<void>(DynamicLibrary::Open({"libcuda.so.1", BATON_CUDA_DRIVER_STUB}));
    auto loaded = LoadCudnn(LibrarySearch::OfProcess(kCudnnVariable));
    std::cout << "cuDNN: " << (loaded.ok() ? (*loaded)->Description() : "none") << "\n";
    return loaded.ok() ? *loaded : nullptr;
  }());
  return api;
}

#define SKIP_WITHOUT_CUDNN()                  \
  if (Cudnn() == nullptr) {                   \
    GTEST_SKIP() << "cuDNN is not installed"; \
  }

// Query heads, KV heads and head_dim of the models that Baton is measured on.
using Heads = std::tuple<int64_t, int64_t, int64_t>;
constexpr Heads kLlama8B = {32, 8, 128};  // and Qwen3-8B
constexpr Heads kLlama1B = {32, 8, 64};
constexpr Heads kQwen7B = {28, 4, 128};

struct Form {
  const char* name;
  int64_t batch;
  int64_t queries;
  int64_t keys;
  AttentionMask mask;
  bool ragged;
  int64_t page_tokens = 0;
};
constexpr Form kForms[] = {
    {"prompt", 1, 8192, 8192, AttentionMask::kCausal, false},
    {"longest_prompt", 1, 131072, 131072, AttentionMask::kCausal, false},
    {"chunk", 1, 2048, 32768, AttentionMask::kCausalBottomRight, false},
    {"odd_chunk", 1, 2000, 32767, AttentionMask::kCausalBottomRight, false},
    {"earlier_keys", 1, 2048, 30720, AttentionMask::kNone, false},
    {"packed_prompts", 16, 512, 512, AttentionMask::kCausal, true},
    {"packed_chunks", 8, 2048, 32768, AttentionMask::kCausalBottomRight, true},
    {"one_packed_chunk", 1, 512, 131072, AttentionMask::kCausalBottomRight, true},
    {"paged_prompts", 16, 512, 512, AttentionMask::kCausalBottomRight, true, 32},
    {"paged_chunks", 8, 2048, 32768, AttentionMask::kCausalBottomRight, true, 16},
    {"one_paged_chunk", 1, 512, 131072, AttentionMask::kCausalBottomRight, true, 64},
};

// The oldest cuDNN that is known to read pages in its kernel of Hopper; 9.14 has only the generic
// one for them.
constexpr size_t kPagesCudnn = 91900;

// The queries of ragged forms lie in front of the keys and values of one projection.
AttentionShape ShapeOf(const Heads& heads, const Form& form) {
  const auto [query_heads, kv_heads, head_dim] = heads;
  const DensePageLayout page = {.page_tokens = static_cast<int32_t>(form.page_tokens),
                                .kv_heads = static_cast<int32_t>(kv_heads),
                                .head_dim = static_cast<int32_t>(head_dim),
                                .dtype = DType::kBF16};
  return {.batch = form.batch,
          .heads = query_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .queries = form.queries,
          .keys = form.keys,
          .mask = form.mask,
          .ragged = form.ragged,
          .q_stride = form.ragged ? (query_heads + 2 * kv_heads) * head_dim : 0,
          .out_stride = form.ragged ? query_heads * head_dim : 0,
          .page_tokens = form.page_tokens,
          .page_stride = static_cast<int64_t>(page.stride_bytes() / sizeof(uint16_t))};
}

class AttentionSupportTest : public TestWithParam<std::tuple<Heads, Form>> {};

TEST_P(AttentionSupportTest, HopperHasATiledKernelThatCompiles) {
  SKIP_WITHOUT_CUDNN();
  if (std::get<1>(GetParam()).page_tokens > 0 && Cudnn()->version < kPagesCudnn) {
    GTEST_SKIP() << "this cuDNN is too old for pages";
  }
  const auto device = DevicePropertiesFromJson(Cudnn(), H200(Cudnn()->version));
  ASSERT_TRUE(device.ok()) << device.status();
  const auto graph =
      AttentionGraph::Build(Cudnn(), ShapeOf(std::get<0>(GetParam()), std::get<1>(GetParam())));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto engine = ChooseAttentionEngine(*graph, *device);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_LE(engine->workspace_bytes, 1 << 20);
  const absl::Status plan = BuildAttentionPlan(*engine, *device).status();
  // Compiled, and loaded if there is a driver.
  EXPECT_TRUE(plan.ok() || absl::IsUnavailable(plan)) << plan;
}

INSTANTIATE_TEST_SUITE_P(Graphs,
                         AttentionSupportTest,
                         testing::Combine(testing::Values(kLlama8B, kLlama1B, kQwen7B),
                                          testing::ValuesIn(kForms)),
                         [](const auto& instance) {
                           const Heads& heads = std::get<0>(instance.param);
                           return absl::StrCat(std::get<1>(instance.param).name,
                                               "_",
                                               std::get<0>(heads),
                                               "_",
                                               std::get<1>(heads),
                                               "_",
                                               std::get<2>(heads));
                         });

// Pages where cuDNN can, else what a copy of them looks like.
TEST(AttentionGraphTest, EveryBucketHasATiledKernel) {
  SKIP_WITHOUT_CUDNN();
  const auto device = DevicePropertiesFromJson(Cudnn(), H200(Cudnn()->version));
  ASSERT_TRUE(device.ok()) << device.status();
  constexpr Heads kHeads[] = {
      kLlama8B, kLlama1B, kQwen7B, {14, 2, 64}, {64, 8, 128}, {32, 32, 128}, {8, 1, 64}};
  for (const int64_t page_tokens : {0, 16, 32, 64, 128}) {
    if (page_tokens > 0 && Cudnn()->version < kPagesCudnn) {
      break;
    }
    for (const Heads& heads : kHeads) {
      for (const auto& [sequences, rows, keys] : {std::tuple<int64_t, int64_t, int64_t>{1, 17, 17},
                                                  {1, 131072, 131072},
                                                  {3, 700, 40000},
                                                  {16, 512, 131072},
                                                  {16, 2048, 2048}}) {
        const std::optional<AttentionBucket> bucket = BucketFor(sequences, rows, keys);
        ASSERT_TRUE(bucket.has_value());
        const auto graph = AttentionGraph::Build(Cudnn(),
                                                 ShapeOf(heads,
                                                         {"bucket",
                                                          bucket->batch,
                                                          bucket->queries,
                                                          AttentionBucket::kMostTokens,
                                                          AttentionMask::kCausalBottomRight,
                                                          true,
                                                          page_tokens}));
        ASSERT_TRUE(graph.ok()) << graph.status();
        const auto engine = ChooseAttentionEngine(*graph, *device);
        EXPECT_TRUE(engine.ok()) << engine.status();
      }
    }
  }
}

TEST(AttentionGraphTest, ABucketIsTheSmallestThatHoldsTheSequences) {
  EXPECT_EQ(BucketFor(1, 17, 17), (AttentionBucket{.batch = 1, .queries = 512}));
  EXPECT_EQ(BucketFor(3, 512, 513), (AttentionBucket{.batch = 4, .queries = 512}));
  EXPECT_EQ(BucketFor(3, 513, 513), (AttentionBucket{.batch = 4, .queries = 1024}));
  EXPECT_EQ(BucketFor(16, 8192, 8192), (AttentionBucket{.batch = 16, .queries = 8192}));
  EXPECT_EQ(BucketFor(17, 100, 131072), (AttentionBucket{.batch = 16, .queries = 512}));
}

TEST(AttentionGraphTest, NoBucketHoldsTooManyTokensOrNone) {
  EXPECT_EQ(BucketFor(1, 100, 131073), std::nullopt);
  EXPECT_EQ(BucketFor(0, 100, 100), std::nullopt);
  EXPECT_EQ(BucketFor(1, 0, 100), std::nullopt);
  EXPECT_EQ(BucketFor(1, 100, 99), std::nullopt);
}

TEST(AttentionGraphTest, TheGenericEngineIsRefusedByName) {
  SKIP_WITHOUT_CUDNN();
  const auto device = DevicePropertiesFromJson(Cudnn(), H200(Cudnn()->version));
  ASSERT_TRUE(device.ok()) << device.status();
  const auto graph = AttentionGraph::Build(
      Cudnn(),
      ShapeOf(kLlama8B, {"decode", 16, 1, 32768, AttentionMask::kCausalBottomRight, true}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::Status refused = ChooseAttentionEngine(*graph, *device).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("1 x 32768"));
}

TEST(AttentionGraphTest, SizesThatMakeNoAttentionAreRefused) {
  SKIP_WITHOUT_CUDNN();
  const AttentionShape good = ShapeOf(kLlama8B, kForms[0]);
  AttentionShape bad = good;
  bad.kv_heads = 5;
  EXPECT_TRUE(absl::IsInvalidArgument(AttentionGraph::Build(Cudnn(), bad).status()));
  bad = good;
  bad.queries = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(AttentionGraph::Build(Cudnn(), bad).status()));
  bad = good;
  bad.head_dim = 100;
  EXPECT_TRUE(absl::IsInvalidArgument(AttentionGraph::Build(Cudnn(), bad).status()));
  bad = good;
  bad.q_stride = bad.heads * bad.head_dim - 8;
  EXPECT_TRUE(absl::IsInvalidArgument(AttentionGraph::Build(Cudnn(), bad).status()));
  bad = good;
  bad.page_tokens = 32;
  EXPECT_TRUE(absl::IsInvalidArgument(AttentionGraph::Build(Cudnn(), bad).status()));
}

TEST(CudnnApiTest, AMissingLibraryIsNamed) {
  const auto api = LoadCudnn({.override_file = "/nowhere/libcudnn.so.9"});
  ASSERT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(api.status().message(), HasSubstr("/nowhere/libcudnn.so.9"));
}

TEST(CudnnApiTest, ALibraryThatIsNoCudnnIsNamed) {
  const auto api = LoadCudnn({.override_file = "libm.so.6"});
  ASSERT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(api.status().message(), HasSubstr("cudnnGetVersion"));
}

TEST(CudnnApiTest, TheVersionAndTheFileAreKnown) {
  SKIP_WITHOUT_CUDNN();
  EXPECT_GE(Cudnn()->version, kOldestCudnn);
  EXPECT_THAT(Cudnn()->Description(), HasSubstr(" of /"));
}

}  // namespace
}  // namespace baton::kernels::cuda
