#include "common/scheduling/pair_choice.h"

#include <vector>

#include "gtest/gtest.h"

namespace baton::scheduling {
namespace {

PrefillLoad Prefill(uint64_t worker, int64_t free_slots, int64_t waiting_tokens = 0) {
  return {
      .worker = worker, .ready = true, .free_slots = free_slots, .waiting_tokens = waiting_tokens};
}

// A decode worker of 1000 tokens with a share of its pages in use.
DecodeLoad Decode(uint64_t worker, int64_t used_percent, int64_t running = 1) {
  return {.worker = worker,
          .ready = true,
          .pool_tokens = 1000,
          .pages_total = 100,
          .pages_free = 100 - used_percent,
          .running_sequences = running};
}

constexpr PairNeeds kSmall = {.prompt_tokens = 50, .total_tokens = 100};

TEST(PairChoiceTest, TakesThePrefillWorkerWithFewestTokensAhead) {
  const std::vector<PrefillLoad> prefills = {Prefill(1, 1, 500), Prefill(2, 1, 20)};
  EXPECT_EQ(ChoosePrefill(prefills, kSmall), 2u);
}

TEST(PairChoiceTest, CountsWhatThisRouterSentSinceTheReport) {
  std::vector<PrefillLoad> prefills = {Prefill(1, 2), Prefill(2, 2, 20)};
  prefills[0].unreported_requests = 1;
  prefills[0].unreported_tokens = 50;
  EXPECT_EQ(ChoosePrefill(prefills, kSmall), 2u);
  prefills[1].unreported_requests = 2;  // its slots are spoken for
  EXPECT_EQ(ChoosePrefill(prefills, kSmall), 1u);
}

TEST(PairChoiceTest, NoFreeSlotMeansNoPrefill) {
  const std::vector<PrefillLoad> prefills = {Prefill(1, 0), Prefill(2, 0)};
  EXPECT_FALSE(ChoosePrefill(prefills, kSmall).has_value());
}

TEST(PairChoiceTest, AWorkerThatIsNotReadyIsNeverChosen) {
  std::vector<PrefillLoad> prefills = {Prefill(1, 4)};
  prefills[0].ready = false;
  EXPECT_FALSE(ChoosePrefill(prefills, kSmall).has_value());
  std::vector<DecodeLoad> decodes = {Decode(1, 0)};
  decodes[0].ready = false;
  EXPECT_FALSE(ChooseDecode(decodes, kSmall, false).has_value());
}

TEST(PairChoiceTest, TheDecodeWorkerThatKeptSomethingIsPreferredWhileItHasRoom) {
  PairNeeds needs = kSmall;
  needs.prefer_decode = 2;
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 0), Decode(2, 80)}, needs, false), 2u);
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 0), Decode(2, 95)}, needs, false), 1u);
  needs.avoid_decode = 2;
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 0), Decode(2, 0)}, needs, false), 1u);
}

TEST(PairChoiceTest, ThePrefillWorkerThatRetainsTheKvNeedsNoFreeSlot) {
  PairNeeds needs = kSmall;
  needs.prefer_prefill = 1;
  std::vector<PrefillLoad> prefills = {Prefill(1, 0, 900), Prefill(2, 4)};
  EXPECT_EQ(ChoosePrefill(prefills, needs), 1u);
  prefills[0].ready = false;
  EXPECT_EQ(ChoosePrefill(prefills, needs), 2u);
}

TEST(PairChoiceTest, AFailedPrefillWorkerIsTheLastResort) {
  PairNeeds needs = kSmall;
  needs.avoid_prefill = 1;
  EXPECT_EQ(ChoosePrefill(std::vector{Prefill(1, 4), Prefill(2, 1, 900)}, needs), 2u);
  EXPECT_EQ(ChoosePrefill(std::vector{Prefill(1, 4)}, needs), 1u);
}

TEST(PairChoiceTest, TakesTheDecodeWorkerWithMostRoomLeft) {
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 60), Decode(2, 30)}, kSmall, false), 2u);
}

TEST(PairChoiceTest, ADecodeWorkerWithoutRoomWaitsForLoadsToChange) {
  EXPECT_FALSE(ChooseDecode(std::vector{Decode(1, 95)}, kSmall, false).has_value());
  std::vector<DecodeLoad> promised = {Decode(1, 50)};
  promised[0].unreported_tokens = 450;
  EXPECT_FALSE(ChooseDecode(promised, kSmall, false).has_value());
}

TEST(PairChoiceTest, AnIdleDecodeWorkerIsAskedWhateverTheEstimate) {
  const PairNeeds large = {.prompt_tokens = 900, .total_tokens = 1000};
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 10, /*running=*/0)}, large, false), 1u);
  EXPECT_FALSE(ChooseDecode(std::vector{Decode(1, 10, /*running=*/1)}, large, false).has_value());
}

TEST(PairChoiceTest, ARequestLargerThanAPoolWaitsForALargerOne) {
  const PairNeeds large = {.prompt_tokens = 900, .total_tokens = 1001};
  const DecodeLoad small = Decode(1, 0, /*running=*/0);
  DecodeLoad busy = Decode(2, 80);
  busy.pool_tokens = 2000;
  EXPECT_FALSE(ChooseDecode(std::vector{small, busy}, large, false).has_value());
  busy.pages_free = 100;
  EXPECT_EQ(ChooseDecode(std::vector{small, busy}, large, false), 2u);
}

TEST(PairChoiceTest, ARefusalCountsUntilTheNextReport) {
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 50)};
  decodes[0].full = true;
  EXPECT_EQ(ChooseDecode(decodes, kSmall, false), 2u);
  decodes[1].full = true;
  EXPECT_FALSE(ChooseDecode(decodes, kSmall, false).has_value());
}

TEST(PairChoiceTest, RoleBothPrefillsOnlyWhenNoPrefillWorkerIsReady) {
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 40)};
  decodes[1].can_prefill = true;
  const auto split = ChoosePair(std::vector{Prefill(9, 1)}, decodes, kSmall);
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->prefill, 9u);
  EXPECT_EQ(split->decode, 1u);
  EXPECT_FALSE(ChoosePair(std::vector{Prefill(9, 0)}, decodes, kSmall).has_value())
      << "a busy prefill worker is waited for";
  const auto local = ChoosePair({}, decodes, kSmall);
  ASSERT_TRUE(local.has_value());
  EXPECT_FALSE(local->prefill.has_value());
  EXPECT_EQ(local->decode, 2u);
}

// Topology is a score: it decides between workers that are about equally full.
TEST(PairChoiceTest, ADecodeWorkerOnTheSameHostOrInTheSameRackIsTakenUnlessItIsMuchFuller) {
  const Place prefill = {.host = "a", .rack = "r"};
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 0), Decode(3, 0)};
  decodes[1].place = {.host = "b", .rack = "r"};
  decodes[2].place = {.host = "a", .rack = "r"};
  const auto used = [&](int64_t rack_percent, int64_t host_percent) {
    decodes[1].pages_free = 100 - rack_percent;
    decodes[2].pages_free = 100 - host_percent;
    return *ChooseDecode(decodes, kSmall, false, &prefill);
  };
  EXPECT_EQ(used(0, 0), 3u);
  EXPECT_EQ(used(0, 9), 3u);
  EXPECT_EQ(used(0, 11), 2u);
  EXPECT_EQ(used(9, 21), 2u);
  EXPECT_EQ(used(11, 19), 3u);
  EXPECT_EQ(used(11, 21), 1u);
  EXPECT_EQ(*ChooseDecode(decodes, kSmall, false), 1u) << "nobody is near";
}

TEST(PairChoiceTest, WorkersThatDoNotSayWhereTheyStandAreNotNear) {
  const Place nowhere;
  EXPECT_EQ(ChooseDecode(std::vector{Decode(1, 1), Decode(2, 0)}, kSmall, false, &nowhere), 2u);
}

TEST(PairChoiceTest, NearnessComesAfterKeptKvAndFailures) {
  const Place prefill = {.host = "a"};
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 0)};
  decodes[1].place = prefill;
  PairNeeds needs = kSmall;
  needs.prefer_decode = 1;
  EXPECT_EQ(ChooseDecode(decodes, needs, false, &prefill), 1u);
  needs.prefer_decode.reset();
  needs.avoid_decode = 2;
  EXPECT_EQ(ChooseDecode(decodes, needs, false, &prefill), 1u);
}

TEST(PairChoiceTest, OfEquallyLoadedPrefillWorkersTheOneWithTheBestNeighbourIsTaken) {
  std::vector<PrefillLoad> prefills = {Prefill(1, 1), Prefill(2, 1)};
  prefills[0].place = {.host = "a"};
  prefills[1].place = {.host = "b"};
  std::vector<DecodeLoad> decodes = {Decode(7, 35), Decode(8, 10)};
  decodes[0].place = {.host = "a"};
  decodes[1].place = {.host = "b"};
  const auto pair = ChoosePair(prefills, decodes, kSmall);
  EXPECT_EQ(pair->prefill, 2u);
  EXPECT_EQ(pair->decode, 8u);
  prefills[1].waiting_tokens = 1;  // no longer equal
  EXPECT_EQ(ChoosePair(prefills, decodes, kSmall)->prefill, 1u);
  EXPECT_EQ(ChoosePair(prefills, decodes, kSmall)->decode, 8u) << "7 is fuller by 25 %";
}

TEST(PairChoiceTest, APrefillWorkerWithTooSmallAPoolIsLeftOutWhileThereIsALargerOne) {
  std::vector<PrefillLoad> prefills = {Prefill(1, 4), Prefill(2, 1, 500)};
  prefills[0].pool_tokens = 49;
  prefills[1].pool_tokens = 50;
  EXPECT_EQ(ChoosePrefill(prefills, kSmall), 2u);
  EXPECT_EQ(ChoosePair(prefills, std::vector{Decode(7, 0)}, kSmall)->prefill, 2u);
  prefills[1].free_slots = 0;
  EXPECT_FALSE(ChoosePrefill(prefills, kSmall).has_value());
  EXPECT_TRUE(CanPrefill(prefills, kSmall)) << "it has a slot some time";
  prefills[1].ready = false;
  EXPECT_FALSE(ChoosePrefill(prefills, kSmall).has_value());
  EXPECT_FALSE(CanPrefill(prefills, kSmall));
  EXPECT_FALSE(CanServe(prefills, std::vector{Decode(7, 0)}, kSmall));
  EXPECT_TRUE(CanServe(prefills, std::vector{Decode(7, 0)})) << "others it can";
  PairNeeds retained = kSmall;
  retained.prefer_prefill = 1;
  EXPECT_EQ(ChoosePrefill(prefills, retained), 1u) << "it has the KV already";
}

TEST(PairChoiceTest, WhereAllPrefillPoolsAreTooSmallAWorkerIsAskedAndSaysSo) {
  std::vector<PrefillLoad> prefills = {Prefill(1, 4), Prefill(2, 4, 10)};
  prefills[0].pool_tokens = 49;
  prefills[1].pool_tokens = 20;
  EXPECT_EQ(ChoosePrefill(prefills, kSmall), 1u);
  EXPECT_TRUE(CanServe(prefills, std::vector{Decode(7, 0)}, kSmall));
}

TEST(PairChoiceTest, CanServeLooksAtTheSizeOfDecodesPool) {
  const std::vector<PrefillLoad> prefills = {Prefill(9, 1)};
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 0)};
  decodes[1].pool_tokens = 5000;
  const PairNeeds large = {.prompt_tokens = 50, .total_tokens = 1001};
  EXPECT_TRUE(CanServe(prefills, decodes, large));
  decodes[1].ready = false;
  EXPECT_FALSE(CanServe(prefills, decodes, large));
  EXPECT_TRUE(CanServe(prefills, decodes, kSmall));
  // A small decode worker that prefills by itself is no way round it.
  decodes[0].can_prefill = true;
  EXPECT_FALSE(CanServe({}, decodes, large));
}

TEST(PairChoiceTest, WhereAllDecodePoolsAreTooSmallAWorkerIsAskedAndSaysSo) {
  const std::vector<DecodeLoad> decodes = {Decode(1, 50), Decode(2, 20)};
  const PairNeeds large = {.prompt_tokens = 50, .total_tokens = 1001};
  EXPECT_EQ(ChooseDecode(decodes, large, false), 2u);
  EXPECT_TRUE(CanServe(std::vector{Prefill(9, 1)}, decodes, large));
}

// Its format's memory may have room where no dense pool has, but a short prompt may stay dense, and
// a worker that prefills computes it in dense pages.
TEST(PairChoiceTest, KvThatNeedNotBeInThePoolPrefersALargeOneThatIsReady) {
  std::vector<DecodeLoad> decodes = {Decode(1, 0), Decode(2, 50)};
  decodes[1].pool_tokens = 5000;
  const PairNeeds large = {.prompt_tokens = 50, .total_tokens = 1001, .dense = false};
  EXPECT_EQ(ChooseDecode(decodes, large, false), 2u);
  decodes[1].full = true;
  EXPECT_FALSE(ChooseDecode(decodes, large, false).has_value()) << "it waits for the large one";
  decodes[1].ready = false;
  EXPECT_EQ(ChooseDecode(decodes, large, false), 1u);
  EXPECT_TRUE(CanServe(std::vector{Prefill(9, 1)}, decodes, large));
}

TEST(PairChoiceTest, CanServeNeedsBothRolesOrRoleBoth) {
  std::vector<DecodeLoad> decodes = {Decode(1, 100)};
  EXPECT_FALSE(CanServe({}, decodes));
  EXPECT_TRUE(CanServe(std::vector{Prefill(9, 0)}, decodes)) << "full is still able to serve";
  EXPECT_FALSE(CanServe(std::vector{Prefill(9, 0)}, {}));
  decodes[0].can_prefill = true;
  EXPECT_TRUE(CanServe({}, decodes));
}

}  // namespace
}  // namespace baton::scheduling
