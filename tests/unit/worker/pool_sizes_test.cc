#include "common/worker/pool_sizes.h"

#include <cstdint>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(PoolSizesTest, TheHostHasDefaultsWhereNothingIsTold) {
  engine::EngineOptions options;
  SetHostPools({.diffkv = 0, .hidden = 7}, options);
  EXPECT_EQ(options.kv_pool_bytes, kGiB);
  EXPECT_EQ(options.codec_pools.fp8_bytes, kGiB / 4);
  EXPECT_EQ(options.codec_pools.diffkv_bytes, 0);
  EXPECT_EQ(options.codec_pools.shadowkv_bytes, kGiB / 4);
  EXPECT_EQ(options.codec_pools.hidden_bytes, 7);
}

TEST(PoolSizesTest, ADevicesMemoryIsDividedAmongItsFormats) {
  engine::EngineOptions options;
  ASSERT_TRUE(SetDevicePools({.hidden = 0}, 80 * kGiB, options).ok());
  EXPECT_EQ(options.kv_pool_bytes, 20 * kGiB);
  EXPECT_EQ(options.codec_pools.fp8_bytes, 20 * kGiB);
  EXPECT_EQ(options.codec_pools.diffkv_bytes, 20 * kGiB);
  EXPECT_EQ(options.codec_pools.shadowkv_bytes, 20 * kGiB);
}

TEST(PoolSizesTest, HiddenStatesHaveA32ndOfADeviceWhereTheyAreHandedOff) {
  engine::EngineOptions options;
  options.staging_bytes = 0;
  for (const engine::Role role : {engine::Role::kPrefill, engine::Role::kDecode}) {
    options.role = role;
    ASSERT_TRUE(SetDevicePools({}, 64 * kGiB, options).ok());
    EXPECT_EQ(options.codec_pools.hidden_bytes, 2 * kGiB);
    EXPECT_EQ(options.kv_pool_bytes, 62 * kGiB / 4);
    ASSERT_TRUE(SetDevicePools({.hidden = 4 * kGiB}, 64 * kGiB, options).ok());
    EXPECT_EQ(options.codec_pools.hidden_bytes, 4 * kGiB);
    EXPECT_EQ(options.kv_pool_bytes, 15 * kGiB);
  }
  options.role = engine::Role::kBoth;
  ASSERT_TRUE(SetDevicePools({}, 64 * kGiB, options).ok());
  EXPECT_GT(options.codec_pools.hidden_bytes, 0) << "policies with them are served";
  EXPECT_LE(options.codec_pools.hidden_bytes, 1 << 20);
}

TEST(PoolSizesTest, WhatIsToldIsKeptAndTheRestDivided) {
  engine::EngineOptions options;
  ASSERT_TRUE(SetDevicePools({.fp8 = kGiB, .diffkv = 50 * kGiB, .shadowkv = 0, .hidden = 0},
                             91 * kGiB,
                             options)
                  .ok());
  EXPECT_EQ(options.kv_pool_bytes, 40 * kGiB);
  EXPECT_EQ(options.codec_pools.fp8_bytes, kGiB);
  EXPECT_EQ(options.codec_pools.diffkv_bytes, 50 * kGiB);
  EXPECT_EQ(options.codec_pools.shadowkv_bytes, 0);
  ASSERT_TRUE(
      SetDevicePools({.dense = kGiB, .fp8 = 0, .diffkv = 2 * kGiB, .shadowkv = 0, .hidden = 0},
                     3 * kGiB,
                     options)
          .ok());
  EXPECT_EQ(options.kv_pool_bytes, kGiB);
}

TEST(PoolSizesTest, ValuesInTheHostsMemoryAreServedWhereADeviceDecodesAndMemoryIsTold) {
  engine::EngineOptions options;
  SetHostPools({.shadowkv_host = kGiB}, options);
  EXPECT_EQ(options.codec_pools.shadowkv_host_bytes, std::nullopt) << "all memory is the host's";
  ASSERT_TRUE(SetDevicePools({.shadowkv_host = 300 * kGiB, .hidden = 0}, 80 * kGiB, options).ok());
  EXPECT_EQ(options.codec_pools.shadowkv_host_bytes, 300 * kGiB);
  EXPECT_EQ(options.codec_pools.shadowkv_bytes, 20 * kGiB) << "of the device";
  ASSERT_TRUE(SetDevicePools({}, 80 * kGiB, options).ok());
  EXPECT_EQ(options.codec_pools.shadowkv_host_bytes, 0) << "not served";
  options.role = engine::Role::kPrefill;
  ASSERT_TRUE(SetDevicePools({}, 80 * kGiB, options).ok());
  EXPECT_EQ(options.codec_pools.shadowkv_host_bytes, std::nullopt) << "they stay on the device";
}

TEST(PoolSizesTest, WhereDecodeHasPromptsLandIsNotDivided) {
  engine::EngineOptions options;
  options.staging_bytes = kGiB;
  for (const engine::Role role :
       {engine::Role::kPrefill, engine::Role::kDecode, engine::Role::kBoth}) {
    options.role = role;
    ASSERT_TRUE(SetDevicePools({.hidden = 0}, 9 * kGiB, options).ok());
    EXPECT_EQ(options.kv_pool_bytes, (role == engine::Role::kDecode ? 8 : 9) * kGiB / 4);
  }
}

TEST(PoolSizesTest, MoreThanTheDeviceHasIsRefusedWithTheSizes) {
  engine::EngineOptions options;
  const absl::Status status = SetDevicePools({.diffkv = 5 * kGiB}, 4 * kGiB, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 4096 MiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for 5120 MiB"));
  EXPECT_EQ(SetDevicePools({}, kGiB / 100, options).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(SetDevicePools({}, -kGiB, options).code(), absl::StatusCode::kResourceExhausted)
      << "the model alone takes more than the share";
}

}  // namespace
}  // namespace baton::worker
