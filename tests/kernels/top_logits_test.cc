// top_logits of the back ends on the host: a full sort's first tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"

#include "kernels/ops/params.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class TopLogitsTest : public BackendTest {
 protected:
  // The lists of one row.
  struct Lists {
    std::vector<int32_t> ids;
    std::vector<float> values;
    float log_sum = 0.0f;
  };

  Lists TopOf(const std::vector<float>& logits, int32_t count) const {
    Lists lists = {.ids = std::vector<int32_t>(static_cast<size_t>(count), 77),
                   .values = std::vector<float>(static_cast<size_t>(count), 77.0f)};
    const absl::Status status = ops().top_logits({},
                                                 {.logits = logits.data(),
                                                  .rows = 1,
                                                  .vocab = static_cast<int64_t>(logits.size()),
                                                  .count = count,
                                                  .ids = lists.ids.data(),
                                                  .values = lists.values.data(),
                                                  .log_sums = &lists.log_sum});
    EXPECT_TRUE(status.ok()) << status;
    return lists;
  }
};

TEST_P(TopLogitsTest, ListsTheFirstOfAFullSort) {
  std::mt19937 random(TestSeed());
  for (const int32_t vocab : {1, 2, 255, 256, 1000, 32000}) {
    for (const int32_t count : {1, 5, 256}) {
      // Few different values: ties all over.
      std::vector<float> logits(static_cast<size_t>(vocab));
      for (float& logit : logits) {
        logit = static_cast<float>(static_cast<int32_t>(random() % 400) - 200) * 0.25f;
      }
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      const Lists lists = TopOf(logits, count);
      for (size_t i = 0; i < lists.ids.size(); ++i) {
        const bool listed = i < order.size();
        ASSERT_EQ(lists.ids[i], listed ? order[i] : -1) << "place " << i << "; " << SeedMessage();
        ASSERT_EQ(lists.values[i], listed ? logits[static_cast<size_t>(order[i])] : -kInfinity);
      }
      double sum = 0.0;
      for (const float logit : logits) {
        sum += std::exp(static_cast<double>(logit));
      }
      EXPECT_NEAR(lists.log_sum, std::log(sum), 1e-4) << SeedMessage();
    }
  }
}

TEST_P(TopLogitsTest, WhatCannotBeDrawnIsNotListed) {
  const Lists lists = TopOf({kNaN, -kInfinity, 2.0f, kNaN, 3.0f}, 4);
  EXPECT_EQ(lists.ids, (std::vector<int32_t>{4, 2, -1, -1}));
  EXPECT_NEAR(lists.log_sum, std::log(std::exp(2.0) + std::exp(3.0)), 1e-6);
  EXPECT_EQ(TopOf({kNaN, -kInfinity}, 1).ids.front(), -1);
  EXPECT_EQ(TopOf({kNaN, -kInfinity}, 1).log_sum, -kInfinity);
  const Lists infinite = TopOf({1.0f, kInfinity, kInfinity}, 2);
  EXPECT_EQ(infinite.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(infinite.log_sum, kInfinity);
}

TEST_P(TopLogitsTest, CountsPastTheLimitAreRefused) {
  for (const int32_t count : {0, -1, kMaxTopLogits + 1}) {
    const absl::Status status = ops().top_logits({}, {.rows = 1, .vocab = 10, .count = count});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("top_logits: count"), std::string::npos) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         TopLogitsTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace baton::kernels
