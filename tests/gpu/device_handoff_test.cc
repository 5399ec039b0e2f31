// Prefill and decode engines on one device, joined over host memory or within the device: the
// tokens of one engine there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {
namespace {

// An engine with a back end of its own.
struct BackendEngine {
  BackendEngine(const checkpoint::Checkpoint& checkpoint, Role role, const char* device) {
    auto opened = kernels::Backend::Open(device, /*threads=*/1);
    EXPECT_TRUE(opened.ok()) << opened.status();
    backend = *std::move(opened);
    EngineOptions options;
    options.role = role;
    options.kv_pool_bytes = int64_t{64} << 20;
    options.codec_pools = {.fp8_bytes = 32 << 20,
                           .diffkv_bytes = 32 << 20,
                           .shadowkv_bytes = 32 << 20,
                           .hidden_bytes = 8 << 20};
    if (role != Role::kPrefill) {
      options.codec_pools.shadowkv_host_bytes = 32 << 20;
    }
    options.staging_bytes = int64_t{64} << 20;
    options.step_token_budget = 512;
    options.prefill_chunk_tokens = 128;
    options.max_running_sequences = 16;
    auto model = model::Model::Load(checkpoint,
                                    backend->ops(),
                                    backend->exec(),
                                    {.max_step_rows = options.step_token_budget,
                                     .max_logit_rows = options.max_running_sequences});
    EXPECT_TRUE(model.ok()) << model.status();
    auto created = Engine::Create(
        *std::move(model), backend->exec(), backend->ops(), options, nullptr, nullptr);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  void ExpectFree() const {
    EXPECT_TRUE(Eventually([this] {
      const EngineLoad load = engine->load();
      return load.pages_free == load.pages_total && load.orphaned_bytes == 0 &&
             std::all_of(
                 load.format_pools.begin(), load.format_pools.end(), [](const FormatPool& pool) {
                   return pool.bytes.free == pool.bytes.total;
                 });
    }));
  }

  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<Engine> engine;
};

class DeviceHandoffGpuTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int32_t kRequests = 3;

  void SetUp() override {
    if (kernels::CudaOps() == nullptr) {
      GTEST_SKIP() << "no CUDA device";
    }
  }

  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ =
      OpenModel(std::string(GetParam()).starts_with("hidden") ? "tiny-llama-needle-swiftkv-l6"
                                                              : "tiny-llama-needle");
};

TEST_P(DeviceHandoffGpuTest, GivesTheTokensOfOneEngine) {
  std::vector<std::vector<int32_t>> want;
  {
    const BackendEngine both(*checkpoint_, Role::kBoth, "cuda");
    for (int32_t salt = 0; salt < kRequests; ++salt) {
      want.push_back(Alone(*both.engine, MakeRequest(GetParam(), salt))->tokens());
    }
  }
  const BackendEngine decode(*checkpoint_, Role::kDecode, "cuda");
  const BackendEngine prefill(*checkpoint_, Role::kPrefill, "cuda");
  for (const bool reads_devices : {false, true}) {
    for (int32_t salt = 0; salt < kRequests; ++salt) {
      const SplitRun run =
          Split(*prefill.engine, *decode.engine, MakeRequest(GetParam(), salt), reads_devices);
      run.Await();
      EXPECT_EQ(run.tokens(), want[static_cast<size_t>(salt)])
          << "request " << salt << ", over memory of the host " << !reads_devices;
    }
  }
  prefill.ExpectFree();
  decode.ExpectFree();
}

// Tokens may be others there: a step rounds otherwise on a device, and with other rows beside.
TEST_P(DeviceHandoffGpuTest, RequestsAtOnceAndPairsWithACpuGiveAllBack) {
  for (const auto& [prefill_on, decode_on] :
       {std::pair("cuda", "cuda"), std::pair("cuda", "cpu"), std::pair("cpu", "cuda")}) {
    const BackendEngine decode(*checkpoint_, Role::kDecode, decode_on);
    const BackendEngine prefill(*checkpoint_, Role::kPrefill, prefill_on);
    std::vector<SplitRun> runs;
    runs.reserve(kRequests);
    for (int32_t salt = 0; salt < kRequests; ++salt) {
      runs.push_back(Split(*prefill.engine, *decode.engine, MakeRequest(GetParam(), salt)));
    }
    for (const SplitRun& run : runs) {
      run.Await();
      EXPECT_EQ(run.tokens().size(), static_cast<size_t>(kSplitMaxTokens));
    }
    prefill.ExpectFree();
    decode.ExpectFree();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    DeviceHandoffGpuTest,
    testing::Values("dense",
                    "fp8",
                    "diffkv:ah=2,al=0.5,w=16",
                    "shadowkv:rank=32,budget=48,outliers=2,local=7",
                    "shadowkv:rank=32,budget=48,outliers=2,local=7,vplace=host",
                    "hidden+dense",
                    "hidden+diffkv:ah=2,al=0.5,w=16",
                    "hidden+shadowkv:rank=32,budget=48,outliers=2,local=7,joint=80"),
    [](const auto& instance) {
      std::string policy = instance.param;
      std::replace(policy.begin(), policy.end(), '+', '_');
      const bool on_host = policy.ends_with("vplace=host");
      return policy.substr(0, policy.find(':')) + (on_host ? "_host" : "");
    });

}  // namespace
}  // namespace baton::engine
