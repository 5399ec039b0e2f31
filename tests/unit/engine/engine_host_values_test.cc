// Values of shadowkv that a device reads from the host's memory (vplace=host).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "kernels/core/dtype.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

constexpr char kPolicy[] = "shadowkv:rank=32,budget=48,outliers=2,local=2";
constexpr int64_t kHostBytes = 8 << 20;

class EngineHostValuesTest : public testing::Test {
 protected:
  RealEngine OnDevice(std::optional<int64_t> host_bytes) const {
    return {*checkpoint_,
            Role::kBoth,
            /*chunk=*/64,
            /*budget=*/100,
            kv::CodecPools{.shadowkv_bytes = 16 << 20, .shadowkv_host_bytes = host_bytes},
            kernels::DeviceDoubleOps(kernels::DType::kF32),
            kernels::GuardedMemory::Get(),
            /*device_workspace_bytes=*/size_t{64} << 20};
  }

  static absl::Status Submit(const RealEngine& device,
                             const std::string& policy,
                             const std::shared_ptr<RecordingListener>& listener) {
    GenerateRequest request;
    request.request_id = policy;
    request.kv_policy = policy;
    request.sampling.max_tokens = 200;
    for (int32_t i = 0; i < 300; ++i) {
      request.prompt.push_back((i * i * 31 + i * 7) % 4000);
    }
    return device.engine->Submit(std::move(request), listener);
  }

  // Bytes that are taken of a pool.
  static int64_t Taken(const RealEngine& device, const std::string& pool) {
    const EngineLoad load = device.engine->load();
    const auto found = std::ranges::find_if(
        load.format_pools, [&](const FormatPool& one) { return one.format == pool; });
    return found == load.format_pools.end() ? -1 : found->bytes.total - found->bytes.free;
  }

  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = OpenModel("tiny-llama-needle");
};

TEST_F(EngineHostValuesTest, ValuesTakeThePoolOfTheHostAndLeaveThatOfTheDevice) {
  const RealEngine device = OnDevice(kHostBytes);
  int64_t device_bytes[2];
  int64_t host_bytes[2];
  std::vector<int32_t> tokens[2];
  for (const int host : {0, 1}) {
    const auto listener = std::make_shared<RecordingListener>();
    const absl::Status status =
        Submit(device, std::string(kPolicy) + (host == 0 ? "" : ",vplace=host"), listener);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(listener->AwaitTokens(1));
    device_bytes[host] = Taken(device, "shadowkv");
    host_bytes[host] = Taken(device, "shadowkv_host");
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    tokens[host] = listener->tokens();
    EXPECT_TRUE(Eventually(
        [&] { return Taken(device, "shadowkv") == 0 && Taken(device, "shadowkv_host") == 0; }));
  }
  EXPECT_EQ(host_bytes[0], 0);
  EXPECT_GT(host_bytes[1], 0);
  EXPECT_LT(device_bytes[1], device_bytes[0]);
  EXPECT_EQ(tokens[1], tokens[0]);
}

TEST_F(EngineHostValuesTest, TheyAreRefusedWithoutAPoolOrWithOneThatIsTooSmall) {
  const std::string policy = std::string(kPolicy) + ",vplace=host";
  const auto listener = std::make_shared<RecordingListener>();
  const absl::Status none = Submit(OnDevice(0), policy, listener);
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("--shadowkv_host_pool_mib"));
  const absl::Status small = Submit(OnDevice(4096), policy, listener);
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(small.message()), HasSubstr("EXCEEDS_CAPACITY"));
  EXPECT_THAT(std::string(small.message()), HasSubstr("the host's memory"));
}

// As where a device computes prompts for others.
TEST_F(EngineHostValuesTest, WithoutWordOfAPoolTheyStayOnTheDevice) {
  const RealEngine device = OnDevice(std::nullopt);
  const auto listener = std::make_shared<RecordingListener>();
  const absl::Status status = Submit(device, std::string(kPolicy) + ",vplace=host", listener);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok()) << listener->status();
  EXPECT_EQ(Taken(device, "shadowkv_host"), -1) << "there is no such pool";
}

// Waits in the queue rather than to take what is there of the other pool.
TEST_F(EngineHostValuesTest, RequestsWaitWhileThePoolOfTheHostIsFull) {
  const RealEngine probe = OnDevice(kHostBytes);
  const auto first = std::make_shared<RecordingListener>();
  const std::string policy = std::string(kPolicy) + ",vplace=host";
  ASSERT_TRUE(Submit(probe, policy, first).ok());
  ASSERT_TRUE(first->AwaitTokens(1));
  const int64_t one = Taken(probe, "shadowkv_host");
  ASSERT_TRUE(first->AwaitDone());

  const RealEngine device = OnDevice(one + one / 2);
  const auto a = std::make_shared<RecordingListener>();
  const auto b = std::make_shared<RecordingListener>();
  ASSERT_TRUE(Submit(device, policy, a).ok());
  ASSERT_TRUE(Submit(device, policy + ",v=v4", b).ok());
  ASSERT_TRUE(a->AwaitDone() && b->AwaitDone());
  EXPECT_TRUE(a->status().ok() && b->status().ok()) << a->status() << b->status();
  EXPECT_EQ(a->tokens(), b->tokens());
  EXPECT_TRUE(Eventually(
      [&] { return Taken(device, "shadowkv") == 0 && Taken(device, "shadowkv_host") == 0; }));
}

}  // namespace
}  // namespace baton::engine
