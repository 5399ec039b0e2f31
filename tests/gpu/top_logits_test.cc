// The most likely tokens of rows of logits on the device: the host's lists.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/ops/params.h"
#include "kernels/ops/top_logits_host.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

struct Lists {
  std::vector<int32_t> ids;
  std::vector<float> values;
  std::vector<float> log_sums;
};

class TopLogitsGpuTest : public GpuTest {
 protected:
  static Lists OnHost(const std::vector<float>& logits, int64_t rows, int32_t count) {
    const auto listed = static_cast<size_t>(rows * count);
    Lists lists = {.ids = std::vector<int32_t>(listed),
                   .values = std::vector<float>(listed),
                   .log_sums = std::vector<float>(static_cast<size_t>(rows))};
    const absl::Status status =
        TopLogitsOnHost({},
                        {.logits = logits.data(),
                         .rows = rows,
                         .vocab = static_cast<int64_t>(logits.size()) / rows,
                         .count = count,
                         .ids = lists.ids.data(),
                         .values = lists.values.data(),
                         .log_sums = lists.log_sums.data()});
    EXPECT_TRUE(status.ok()) << status;
    return lists;
  }

  Lists OnDevice(const std::vector<float>& logits, int64_t rows, int32_t count) const {
    const auto listed = static_cast<size_t>(rows * count);
    const DeviceArray<float> device_logits(logits);
    const auto ids = DeviceArray<int32_t>::Poisoned(listed);
    const auto values = DeviceArray<float>::Poisoned(listed);
    const auto log_sums = DeviceArray<float>::Poisoned(static_cast<size_t>(rows));
    const absl::Status status =
        ops().top_logits(context(),
                         {.logits = device_logits.data(),
                          .rows = rows,
                          .vocab = static_cast<int64_t>(logits.size()) / rows,
                          .count = count,
                          .ids = ids.data(),
                          .values = values.data(),
                          .log_sums = log_sums.data()});
    EXPECT_TRUE(status.ok()) << status;
    Wait();
    return {.ids = ids.Get(), .values = values.Get(), .log_sums = log_sums.Get()};
  }

  void ExpectSame(const std::vector<float>& logits, int64_t rows, int32_t count) const {
    const std::string what = absl::StrCat(rows,
                                          " rows of ",
                                          static_cast<int64_t>(logits.size()) / rows,
                                          ", the first ",
                                          count,
                                          "; ",
                                          SeedMessage());
    const Lists want = OnHost(logits, rows, count);
    const Lists got = OnDevice(logits, rows, count);
    EXPECT_EQ(got.ids, want.ids) << what;
    EXPECT_EQ(got.values, want.values) << what;
    for (size_t row = 0; row < want.log_sums.size(); ++row) {
      if (std::isinf(want.log_sums[row])) {
        EXPECT_EQ(got.log_sums[row], want.log_sums[row]) << what;
      } else {
        EXPECT_NEAR(got.log_sums[row], want.log_sums[row], 2e-5) << what;
      }
    }
  }
};

TEST_F(TopLogitsGpuTest, GivesTheHostsLists) {
  for (const int64_t vocab : {1, 31, 8191, 8192, 8193, 32000, 128256, 262144}) {
    for (const int32_t count : {1, 20, kMaxTopLogits}) {
      const int64_t rows = vocab > 40000 ? 3 : 7;
      ExpectSame(RandomFloats(static_cast<size_t>(rows * vocab), 4.0f), rows, count);
    }
  }
}

TEST_F(TopLogitsGpuTest, TiesGoToTheLowerId) {
  std::mt19937 random(TestSeed());
  for (const int32_t count : {1, 7, kMaxTopLogits}) {
    std::vector<float> logits(size_t{2} * 40000);
    for (float& logit : logits) {
      logit = static_cast<float>(static_cast<int32_t>(random() % 3) - 1);
      logit = logit == 0.0f && random() % 2 == 0 ? -0.0f : logit;
    }
    ExpectSame(logits, 2, count);
    ExpectSame(std::vector<float>(40000, -5.0f), 1, count);
  }
}

// One logit is far from all others, which then share their first digits: few of them, or more than
// are compared with each other, down to the last bit.
TEST_F(TopLogitsGpuTest, LogitsThatAreNearlyEqualAreTold) {
  std::mt19937 random(TestSeed());
  for (const uint32_t kinds : {2u, 60u, 5000u, 3000000u}) {
    for (const float other : {-1e30f, 1.5f, 1e30f}) {
      std::vector<float> logits(size_t{2} * 20000);
      for (float& logit : logits) {
        logit = 1.0f + static_cast<float>(random() % kinds) * std::numeric_limits<float>::epsilon();
      }
      logits[5000] = logits[32000] = other;
      for (const int32_t count : {1, 100, kMaxTopLogits}) {
        ExpectSame(logits, 2, count);
      }
    }
  }
}

TEST_F(TopLogitsGpuTest, WhatCannotBeDrawnIsNotListed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits(size_t{4} * 20000, -kInfinity);
  logits[3] = kNaN;
  logits[9000] = 2.0f;
  logits[20000 + 17] = kInfinity;
  logits[20000 + 19000] = kInfinity;
  for (size_t i = 40000; i < 60000; ++i) {
    logits[i] = -kNaN;
  }
  logits[60000] = -3e38f;
  ExpectSame(logits, 4, 5);
}

TEST_F(TopLogitsGpuTest, VocabulariesPastTheLimitAreRefused) {
  const auto memory = DeviceArray<float>::Poisoned(1);
  const absl::Status status = ops().top_logits(context(),
                                               {.logits = memory.data(),
                                                .rows = 1,
                                                .vocab = (int64_t{1} << 18) + 1,
                                                .count = 1,
                                                .ids = reinterpret_cast<int32_t*>(memory.data()),
                                                .values = memory.data(),
                                                .log_sums = memory.data()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace baton::kernels::cuda
