#include "common/kv/pool/run_pool.h"

#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kv {
namespace {

constexpr int64_t kUnit = static_cast<int64_t>(RunPool::kUnitBytes);

TEST(RunPoolTest, RefusesAPoolWithoutAUnit) {
  EXPECT_EQ(RunPool::Create(kUnit - 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RunPoolTest, RunsAreContiguousAndDisjoint) {
  const auto pool = *RunPool::Create(10 * kUnit);
  const auto a = *pool->Allocate(2 * kUnit + 1);
  const auto b = *pool->Allocate(kUnit);
  EXPECT_EQ(a.units, 3);
  EXPECT_EQ(pool->bytes(a).size(), 3u * RunPool::kUnitBytes);
  EXPECT_EQ(pool->bytes(a).data() + 3 * kUnit, pool->bytes(b).data());
  EXPECT_EQ(pool->units_free(), 6);
}

TEST(RunPoolTest, RefusesWhatHasNoPieceLargeEnough) {
  const auto pool = *RunPool::Create(4 * kUnit);
  const auto a = *pool->Allocate(kUnit);
  const auto b = *pool->Allocate(kUnit);
  const auto c = *pool->Allocate(2 * kUnit);
  pool->Release(a);
  pool->Release(c);
  EXPECT_EQ(pool->units_free(), 3);
  EXPECT_FALSE(pool->Allocate(3 * kUnit).has_value());
  pool->Release(b);
  EXPECT_TRUE(pool->Allocate(4 * kUnit).has_value());
}

TEST(RunPoolTest, EverythingComesBackInAnyOrder) {
  constexpr uint32_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const auto pool = *RunPool::Create(100 * kUnit);
  std::vector<RunPool::Run> taken;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (9 * kUnit));
      if (const std::optional<RunPool::Run> run = pool->Allocate(bytes)) {
        std::memset(pool->bytes(*run).data(), step & 0xff, pool->bytes(*run).size());
        taken.push_back(*run);
      }
    } else if (!taken.empty()) {
      const size_t index = random() % taken.size();
      const auto bytes = pool->bytes(taken[index]);
      EXPECT_EQ(std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1), 0) << "overlap";
      pool->Release(taken[index]);
      taken.erase(taken.begin() + static_cast<ptrdiff_t>(index));
    }
  }
  for (const RunPool::Run& run : taken) {
    pool->Release(run);
  }
  EXPECT_EQ(pool->units_free(), pool->units_total());
  EXPECT_TRUE(pool->Allocate(100 * kUnit).has_value());
}

TEST(RunPoolDeathTest, ReturningTwiceEndsTheProcess) {
  const auto pool = *RunPool::Create(4 * kUnit);
  const auto run = *pool->Allocate(kUnit);
  pool->Release(run);
  EXPECT_DEATH(pool->Release(run), "");
}

}  // namespace
}  // namespace baton::kv
