// What prefill retains, and what goes when there is no room.
#include "common/handoff/retain/retention_store.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/handoff/retain/retained_kv.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"

namespace baton::handoff {
namespace {

constexpr int64_t kBudget = 1000;
constexpr absl::Duration kLease = absl::Seconds(60);

class RetentionStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<RetainedKv> Open(const std::string& id, int64_t bytes, int64_t expected = 0) {
    auto kv = store_.Open(id, "", expected, absl::InfiniteFuture());
    if (kv != nullptr && !store_.Charge(*kv, bytes)) {
      return nullptr;
    }
    return kv;
  }
  // A complete entry that only the store holds.
  void Put(const std::string& id, int64_t bytes, bool acknowledged = false) {
    const auto kv = Open(id, bytes);
    ASSERT_NE(kv, nullptr) << id;
    store_.Complete(*kv, now_);
    if (acknowledged) {
      store_.Acknowledge(*kv);
    }
  }
  // Null when nothing was answered.
  std::optional<std::shared_ptr<const RetainedKv>> Find(const std::string& id,
                                                        const std::string& identity = "") {
    auto answer = std::make_shared<std::optional<std::shared_ptr<const RetainedKv>>>();
    store_.Find(id, identity, now_, [answer](std::shared_ptr<const RetainedKv> kv) {
      *answer = std::move(kv);
    });
    return *answer;
  }
  bool Has(const std::string& id) {
    const auto found = Find(id);
    return found.has_value() && *found != nullptr;
  }
  double Evictions(const char* reason) {
    return registry_.Get(metrics::kKvRetainedEvictions, {reason}).Value();
  }
  double Lookups(const char* outcome) {
    return registry_.Get(metrics::kKvRetainedLookups, {outcome}).Value();
  }

  metrics::Registry registry_{metrics::RegistryOptions{.model_name = "tiny", .role = "prefill"}};
  RetentionStore store_{RetentionOptions{.budget_bytes = kBudget, .lease = kLease}, registry_};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(RetentionStoreTest, TheLeastRecentlyUsedEntryGoesFirst) {
  Put("a", 400);
  Put("b", 400);
  EXPECT_TRUE(Has("a"));
  Put("c", 400);
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_TRUE(Has("c"));
  EXPECT_EQ(store_.bytes(), 800);
  EXPECT_EQ(store_.entries(), 2);
  EXPECT_EQ(Evictions("unacknowledged"), 1);
}

TEST_F(RetentionStoreTest, AcknowledgedEntriesGoBeforeOlderOnesThatAreNot) {
  Put("a", 300);
  Put("b", 300, /*acknowledged=*/true);
  Put("c", 300, /*acknowledged=*/true);
  Put("d", 400);
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_TRUE(Has("c"));
  EXPECT_EQ(Evictions("acknowledged"), 1);
  Put("e", 600);
  EXPECT_FALSE(Has("c"));
  EXPECT_FALSE(Has("d")) << "a was used after it";
  EXPECT_TRUE(Has("a"));
}

TEST_F(RetentionStoreTest, AnEntryAcknowledgedWhileItIsFilledCountsAsAcknowledged) {
  auto kv = Open("a", 400);
  store_.Acknowledge(*kv);
  store_.Complete(*kv, now_);
  kv.reset();
  Put("b", 400);
  EXPECT_TRUE(Has("a"));  // used last
  Put("c", 400);
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Has("b"));
}

TEST_F(RetentionStoreTest, WhatIsShippedOrFilledStaysAndCounts) {
  Put("shipped", 400);
  const auto shipped = Find("shipped");
  const auto filling = Open("filling", 400);
  EXPECT_EQ(Open("late", 400), nullptr);
  EXPECT_EQ(Evictions("no_room"), 1);
  EXPECT_TRUE(store_.Holds(*filling));
  EXPECT_TRUE(Has("shipped"));
  store_.Release("shipped");
  EXPECT_EQ(store_.bytes(), 800) << "released, but its bytes are being read";
}

TEST_F(RetentionStoreTest, AnEntryLargerThanTheBudgetEvictsNobody) {
  Put("a", 400);
  EXPECT_EQ(Open("b", 0, /*expected=*/kBudget + 1), nullptr);
  EXPECT_TRUE(Has("a"));
  EXPECT_EQ(store_.entries(), 1);
}

TEST_F(RetentionStoreTest, TheIdentityCountsAndDecides) {
  const auto kv = store_.Open("a", "prompt", 0, absl::InfiniteFuture());
  EXPECT_EQ(store_.bytes(), 6);
  store_.Complete(*kv, now_);
  EXPECT_EQ(*Find("a", "another prompt"), nullptr);
  EXPECT_EQ(*Find("a", "prompt"), kv);
  EXPECT_EQ(Lookups("miss"), 1);
  EXPECT_EQ(Lookups("hit"), 1);
}

TEST_F(RetentionStoreTest, WhoAsksForAnEntryThatIsFilledIsAnsweredWhenItIsComplete) {
  const auto kv = Open("a", 10);
  std::shared_ptr<const RetainedKv> got;
  int answers = 0;
  store_.Find("a", "", now_, [&](std::shared_ptr<const RetainedKv> found) {
    got = std::move(found);
    ++answers;
  });
  EXPECT_EQ(answers, 0);
  store_.Complete(*kv, now_);
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(got, kv);
}

TEST_F(RetentionStoreTest, WhoWaitsIsToldWhenNothingComes) {
  for (const std::string end : {"dropped", "released", "replaced", "no room"}) {
    SCOPED_TRACE(end);
    const auto kv = Open("a", 10);
    std::optional<std::shared_ptr<const RetainedKv>> answer;
    store_.Find(
        "a", "", now_, [&](std::shared_ptr<const RetainedKv> found) { answer = std::move(found); });
    std::shared_ptr<RetainedKv> other;
    if (end == "dropped") {
      store_.Drop(*kv);
    } else if (end == "released") {
      store_.Release("a");
    } else if (end == "replaced") {
      other = Open("a", 10);
    } else {
      EXPECT_FALSE(store_.Charge(*kv, kBudget));
    }
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(*answer, nullptr);
    EXPECT_FALSE(store_.Charge(*kv, 1)) << "the request has ended or been replaced";
    store_.Complete(*kv, now_);  // too late: changes nothing
    EXPECT_EQ(store_.entries(), other == nullptr ? 0 : 1);
    store_.Release("a");
  }
  EXPECT_EQ(store_.bytes(), 0);
}

TEST_F(RetentionStoreTest, ALeaseEndsAtTheRequestsDeadlineOrSoLongAfterTheLastUse) {
  const auto kv = store_.Open("deadline", "", 0, now_ + absl::Seconds(5));
  store_.Complete(*kv, now_);
  Put("lease", 10);
  store_.Expire(now_ + absl::Seconds(5));
  EXPECT_EQ(store_.entries(), 1);
  now_ += kLease - absl::Seconds(1);
  EXPECT_TRUE(Has("lease"));
  store_.Expire(now_ + kLease - absl::Seconds(1));
  EXPECT_EQ(store_.entries(), 1);
  store_.Expire(now_ + kLease);
  EXPECT_EQ(store_.entries(), 0);
  EXPECT_EQ(Evictions("expired"), 2);
}

// Many requests at once, in any order of events: never over the budget, nothing left behind.
TEST_F(RetentionStoreTest, AStormOfRequestsKeepsTheBudgetAndLeavesNothing) {
  const uint32_t seed = std::random_device()();
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE(seed);
  std::atomic<int> answers = 0;
  std::atomic<int> asked = 0;
  std::atomic<bool> over = false;
  const auto requests = [&](uint32_t number) {
    std::mt19937 random(seed + number);
    for (int i = 0; i < 400; ++i) {
      const std::string id = std::to_string(random() % 20);
      auto kv = store_.Open(id, "", 0, absl::InfiniteFuture());
      bool whole = kv != nullptr;
      for (uint32_t group = random() % 4; whole && group > 0; --group) {
        whole = store_.Charge(*kv, random() % 200);
        over = over || store_.bytes() > kBudget;
      }
      ++asked;
      store_.Find(std::to_string(random() % 20), "", now_, [&](const auto&) { ++answers; });
      if (whole && random() % 4 != 0) {
        store_.Complete(*kv, now_);
        store_.Acknowledge(*kv);
      } else if (kv != nullptr) {
        store_.Drop(*kv);
      }
      if (random() % 2 == 0) {
        store_.Release(id);
      }
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back(requests, number);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(over);
  store_.Expire(now_ + kLease);
  EXPECT_EQ(store_.entries(), 0);
  EXPECT_EQ(store_.bytes(), 0);
  EXPECT_EQ(answers, asked);
}

}  // namespace
}  // namespace baton::handoff
