#include "common/scheduling/central_queue.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

constexpr QueueLimits kLimits = {.max_requests = 3, .max_tokens = 100, .max_bytes = 1000};

std::optional<QueueEntry> TakeHead(CentralQueue& queue) {
  const std::optional<QueueEntry> head = queue.Next(0);
  if (head.has_value()) {
    EXPECT_TRUE(queue.Remove(head->id));
  }
  return head;
}

TEST(CentralQueueTest, GivesRequestsInOrderOfArrival) {
  CentralQueue queue(kLimits);
  ASSERT_TRUE(queue.Add({.id = 5, .tokens = 1, .bytes = 1}).ok());
  ASSERT_TRUE(queue.Add({.id = 7, .tokens = 1, .bytes = 1}).ok());
  EXPECT_EQ(queue.Next(0)->id, 5u);
  EXPECT_EQ(TakeHead(queue)->id, 5u);
  EXPECT_EQ(TakeHead(queue)->id, 7u);
  EXPECT_FALSE(TakeHead(queue).has_value());
}

TEST(CentralQueueTest, NextIsTheOneThatArrivedAfterAlsoWhenThatOneHasLeft) {
  CentralQueue queue(kLimits);
  for (const uint64_t id : {3U, 5U, 8U}) {
    ASSERT_TRUE(queue.Add({.id = id, .tokens = 1, .bytes = 1}).ok());
  }
  EXPECT_EQ(queue.Next(3)->id, 5u);
  EXPECT_TRUE(queue.Remove(5));
  EXPECT_EQ(queue.Next(5)->id, 8u);
  EXPECT_FALSE(queue.Next(8).has_value());
}

TEST(CentralQueueTest, RefusesOneRequestMoreThanItMayHold) {
  CentralQueue queue(kLimits);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(queue.Add({.id = id, .tokens = 1, .bytes = 1}).ok());
  }
  const absl::Status status = queue.Add({.id = 4, .tokens = 1, .bytes = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("3 of 3 requests"), absl::string_view::npos);
}

// Catalogue T32
TEST(CentralQueueTest, RefusesByTokensAndByBytesNamingTheLimit) {
  CentralQueue queue(kLimits);
  ASSERT_TRUE(queue.Add({.id = 1, .tokens = 60, .bytes = 600}).ok());
  const absl::Status tokens = queue.Add({.id = 2, .tokens = 41, .bytes = 1});
  EXPECT_EQ(tokens.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(tokens.message().find("tokens"), absl::string_view::npos);
  const absl::Status bytes = queue.Add({.id = 2, .tokens = 1, .bytes = 401});
  EXPECT_EQ(bytes.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(bytes.message().find("bytes"), absl::string_view::npos);
  EXPECT_TRUE(queue.Add({.id = 2, .tokens = 40, .bytes = 400}).ok());
}

TEST(CentralQueueTest, ARequestThatCanNeverFitIsInvalidRatherThanRefused) {
  CentralQueue queue(kLimits);
  EXPECT_EQ(queue.Add({.id = 1, .tokens = 101, .bytes = 1}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CentralQueueTest, AReturnedRequestIsTakenPastTheLimits) {
  CentralQueue queue(kLimits);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(queue.Add({.id = id, .tokens = 1, .bytes = 1}).ok());
  }
  const QueueEntry head = *TakeHead(queue);
  ASSERT_TRUE(queue.Add({.id = 4, .tokens = 1, .bytes = 1}).ok());
  ASSERT_TRUE(queue.Return(head).ok());
  EXPECT_EQ(queue.totals().requests, 4);
  EXPECT_EQ(queue.Next(0)->id, 1u);
}

TEST(CentralQueueTest, ReturnedRequestsStandWhereTheyStoodInWhateverOrderTheyReturn) {
  CentralQueue queue({.max_requests = 4, .max_tokens = 100, .max_bytes = 1000});
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(queue.Add({.id = id, .tokens = 1, .bytes = 1}).ok());
  }
  const QueueEntry first = *TakeHead(queue);
  const QueueEntry second = *TakeHead(queue);
  const QueueEntry third = *TakeHead(queue);
  for (const QueueEntry& refused : {first, third, second}) {
    ASSERT_TRUE(queue.Return(refused).ok());
  }
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(TakeHead(queue)->id, id);
  }
}

TEST(CentralQueueTest, ARemovedRequestLeavesRoom) {
  CentralQueue queue(kLimits);
  ASSERT_TRUE(queue.Add({.id = 1, .tokens = 100, .bytes = 1}).ok());
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_TRUE(queue.empty());
  EXPECT_TRUE(queue.Add({.id = 2, .tokens = 100, .bytes = 1}).ok());
}

TEST(CentralQueueTest, TheSameIdIsRefusedTwice) {
  CentralQueue queue(kLimits);
  ASSERT_TRUE(queue.Add({.id = 1, .tokens = 1, .bytes = 1}).ok());
  EXPECT_EQ(queue.Add({.id = 1, .tokens = 1, .bytes = 1}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(queue.Return({.id = 1}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(queue.totals().tokens, 1);
}

// Random operations against a plain deque.
TEST(CentralQueueTest, BehavesLikeAPlainListUnderRandomOperations) {
  const char* given = std::getenv("BATON_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("repeat with BATON_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  CentralQueue queue({.max_requests = 20, .max_tokens = 500, .max_bytes = 500});
  std::deque<QueueEntry> model;
  std::vector<QueueEntry> taken;
  int64_t tokens = 0;
  uint64_t last_id = 0;
  for (int step = 0; step < 5000; ++step) {
    switch (random() % 5) {
      case 0:
      case 1: {
        const QueueEntry entry = {
            .id = ++last_id, .tokens = static_cast<int64_t>(random() % 60), .bytes = 1};
        const bool fits = model.size() < 20 && tokens + entry.tokens <= 500;
        ASSERT_EQ(queue.Add(entry).ok(), fits);
        if (fits) {
          model.push_back(entry);
          tokens += entry.tokens;
        }
        break;
      }
      case 2: {
        const auto popped = TakeHead(queue);
        ASSERT_EQ(popped.has_value(), !model.empty());
        if (popped.has_value()) {
          ASSERT_EQ(popped->id, model.front().id);
          tokens -= model.front().tokens;
          model.pop_front();
          taken.push_back(*popped);
        }
        break;
      }
      case 3: {
        if (taken.empty()) {
          break;
        }
        const auto at = taken.begin() + static_cast<std::ptrdiff_t>(random() % taken.size());
        ASSERT_TRUE(queue.Return(*at).ok());
        tokens += at->tokens;
        const auto later = std::find_if(
            model.begin(), model.end(), [&](const QueueEntry& entry) { return entry.id > at->id; });
        model.insert(later, *at);
        taken.erase(at);
        break;
      }
      default: {
        if (model.empty()) {
          break;
        }
        const auto at = model.begin() + static_cast<std::ptrdiff_t>(random() % model.size());
        ASSERT_TRUE(queue.Remove(at->id));
        tokens -= at->tokens;
        model.erase(at);
      }
    }
    ASSERT_EQ(queue.totals().requests, static_cast<int64_t>(model.size()));
    ASSERT_EQ(queue.totals().tokens, tokens);
  }
}

}  // namespace
}  // namespace baton::scheduling
