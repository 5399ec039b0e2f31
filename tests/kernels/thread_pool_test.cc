#include "kernels/core/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace baton::kernels {
namespace {

TEST(ThreadPoolTest, CountsTheCaller) {
  EXPECT_EQ(ThreadPool(1).threads(), 1);
  EXPECT_EQ(ThreadPool(3).threads(), 3);
  EXPECT_EQ(ThreadPool(0).threads(), 1);
}

TEST(ThreadPoolTest, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      pool.ParallelFor(n, [&](int64_t index, int) { ++runs[static_cast<size_t>(index)]; });
      EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r == 1; }))
          << n << " indices, " << threads << " threads";
    }
  }
}

TEST(ThreadPoolTest, ThreadNamesScratchThatNobodyElseUses) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared = false;
  pool.ParallelFor(10'000, [&](int64_t, int thread) {
    std::atomic<int>& count = inside[static_cast<size_t>(thread)];
    if (count.fetch_add(1) != 0) {
      shared = true;
    }
    count.fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPoolTest, WritesAreSeenByTheCaller) {
  ThreadPool pool(2);
  std::vector<int64_t> squares(64);
  for (int64_t round = 0; round < 2000; ++round) {
    pool.ParallelFor(64, [&](int64_t i, int) { squares[static_cast<size_t>(i)] = round * i; });
    for (int64_t i = 0; i < 64; ++i) {
      ASSERT_EQ(squares[static_cast<size_t>(i)], round * i);
    }
  }
}

TEST(ThreadPoolTest, NegativeCountRunsNothing) {
  ThreadPool pool(2);
  bool ran = false;
  pool.ParallelFor(-3, [&](int64_t, int) { ran = true; });
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace baton::kernels
