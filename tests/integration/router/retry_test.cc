// Workers that refuse, die and break their streams.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/integration/router/fake_cluster.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

class RetryTest : public RouterFixture {
 protected:
  void ExpectBaseline() {
    EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
    EXPECT_EQ(router_->core().running.size(), 0u);
  }
};

TEST_F(RetryTest, PrefillDyingBeforeItsFirstTokenIsTriedAgain) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  prefill.set_prefill([&](int call, auto* context, const auto& request, PrefillWriter* writer) {
    EXPECT_EQ(request.attempt(), static_cast<uint32_t>(call));
    return call == 1 ? kGone : prefill.NormalPrefill(context, request, writer);
  });
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(300, 301, 301));
  EXPECT_EQ(outcome.usage.retries(), 1u);
  ExpectBaseline();
}

TEST_F(RetryTest, AFirstTokenIsDeliveredOnceThoughPrefillRanTwice) {
  FakeWorker& first = AddPrefill();
  FakeWorker& second = AddPrefill();
  AddDecode();
  for (FakeWorker* prefill : {&first, &second}) {
    prefill->set_prefill([&, prefill](int, auto* context, const auto& request, auto* writer) {
      if (request.attempt() == 1) {
        prefill->WriteFirstTokens(request, writer);
        return kGone;
      }
      return prefill->NormalPrefill(context, request, writer);
    });
  }
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(300, 301, 301));
  EXPECT_EQ(first.calls(), 1) << "the other worker gets the second attempt";
  EXPECT_EQ(second.calls(), 1);
}

TEST_F(RetryTest, AnotherFirstTokenAborts) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  prefill.set_prefill([&](int call, auto*, const auto& request, auto* writer) {
    prefill.WriteFirstTokens(request, writer, /*token=*/200 + static_cast<uint32_t>(call));
    return kGone;
  });
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kAborted) << outcome.status;
  ExpectBaseline();
}

TEST_F(RetryTest, PrefillLostForGoodIsUnavailableWithADelay) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  prefill.set_prefill([&](int, auto*, const auto&, auto*) { return grpc::Status::OK; });
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::ReasonOf(outcome.status), "PREFILL_LOST");
  EXPECT_TRUE(rpc::RetryAfter(outcome.status).has_value());
  EXPECT_TRUE(outcome.messages.empty()) << "nothing was sent: the client may retry";
  EXPECT_EQ(prefill.calls(), 3);
  ExpectBaseline();
}

// Catalogue T3: what prefill refuses ends the request on both sides.
TEST_F(RetryTest, PrefillsInvalidArgumentReachesTheClientAndEndsTheReservation) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  prefill.set_prefill([&](int, auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad prompt");
  });
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(prefill.calls(), 1);
  ExpectBaseline();
}

// Catalogue T2: prefill never hears of a request that decode refuses.
TEST_F(RetryTest, ARefusingDecodeIsAskedAgainWhenItsLoadsChange) {
  FakeWorker& prefill = AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_decode([&](int call, auto* context, const auto& request, auto* writer) {
    return call <= 5 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "pool full")
                     : decode.NormalDecode(context, request, writer);
  });
  Start();
  const StreamOutcome outcome = Stream(Request(2));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(decode.calls(), 6);
  EXPECT_EQ(prefill.calls(), 1);
}

TEST_F(RetryTest, OfRequestsThatAreRefusedTogetherTheOldestIsSentAgainAlone) {
  constexpr int kRequests = 8;
  constexpr int kRefusals = kRequests + 3;
  FakeWorker& prefill = AddPrefill();
  prefill.set_free_slots(kRequests);
  FakeWorker& decode = AddDecode();
  absl::Mutex mutex;
  std::vector<uint32_t> accepted;
  std::vector<uint32_t> refused_again;
  decode.set_decode([&](int call, auto* context, const auto& request, auto* writer) {
    // All of them are refused at once, so in any order.
    EXPECT_TRUE(WaitUntil([&] { return decode.calls() >= kRequests; }));
    absl::ReleasableMutexLock lock(&mutex);
    if (call > kRequests) {
      (call <= kRefusals ? refused_again : accepted).push_back(request.sampling().max_tokens());
    }
    lock.Release();
    if (call <= kRefusals) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "pool full");
    }
    return decode.NormalDecode(context, request, writer);
  });
  Start();
  std::vector<std::thread> clients;
  std::vector<uint32_t> arrived;
  for (int i = 0; i < kRequests; ++i) {
    arrived.push_back(static_cast<uint32_t>(2 + i));
    clients.emplace_back([this, tokens = arrived.back()] {
      const StreamOutcome outcome = Stream(Request(tokens));
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    });
    EXPECT_TRUE(WaitUntil([&] { return decode.calls() > i; }));
  }
  for (std::thread& client : clients) {
    client.join();
  }
  // The first may have been sent before the oldest was back.
  EXPECT_THAT(refused_again, ElementsAre(_, 2, 2));
  EXPECT_THAT(accepted, UnorderedElementsAreArray(arrived));
  EXPECT_EQ(accepted.front(), 2u);
}

TEST_F(RetryTest, RequestsThatPrefillRefusedTogetherTakeNoneOfItsSlots) {
  constexpr int kRequests = 4;
  FakeWorker& prefill = AddPrefill();
  prefill.set_free_slots(kRequests);
  AddDecode();
  prefill.set_prefill([&](int call, auto* context, const auto& request, auto* writer) {
    EXPECT_TRUE(WaitUntil([&] { return prefill.calls() >= kRequests; }));
    return call <= kRequests ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full")
                             : prefill.NormalPrefill(context, request, writer);
  });
  Start();
  std::vector<std::thread> clients;
  clients.reserve(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    clients.emplace_back([this] {
      const StreamOutcome outcome = Stream(Request(2));
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  ExpectBaseline();
}

TEST_F(RetryTest, AnotherDecodeIsTakenWhenOneRefuses) {
  AddPrefill();
  FakeWorker& full = AddDecode();
  FakeWorker& other = AddDecode();
  full.set_decode([&](int, auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "pool full");
  });
  Start();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Stream(Request(2)).status.ok());
  }
  EXPECT_EQ(other.calls(), 3);
}

TEST_F(RetryTest, DecodeLostBeforeTheFirstTokenGoesToAnotherPair) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_decode([&](int call, auto* context, const auto& request, auto* writer) {
    return call == 1 ? kGone : decode.NormalDecode(context, request, writer);
  });
  Start();
  const StreamOutcome outcome = Stream(Request(2));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.usage.retries(), 1u);
}

// Catalogue T28: the next worker is told what the client has, and goes on behind it.
TEST_F(RetryTest, DecodeLostInAnAnswerIsContinuedByAnother) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  std::string told;
  decode.set_decode([&](int call, auto* context, const auto& request, auto* writer) {
    if (call > 1) {
      told = request.delivered(0).token_ids();
      return decode.NormalDecode(context, request, writer);
    }
    EXPECT_EQ(request.delivered_size(), 0);
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    decode.WriteToken(0, writer);
    decode.WriteToken(0, writer);
    return kGone;
  });
  Start();
  const StreamOutcome outcome = Stream(Request(6));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(300, 301, 301, 301, 301, 301));
  EXPECT_EQ(outcome.usage.resumes(), 1u);
  EXPECT_EQ(outcome.usage.retries(), 1u);
  EXPECT_EQ(told, std::string("\x2c\x01\0\0\x2d\x01\0\0\x2d\x01\0\0", 12));
  ExpectBaseline();
}

// The prefill worker that retains the KV is asked for it, though another one is free, and told when
// the request has ended.
TEST_F(RetryTest, ALostAnswerIsContinuedFromTheKvThatPrefillRetains) {
  FakeWorker& first = AddPrefill();
  FakeWorker& second = AddPrefill();
  FakeWorker& decode = AddDecode();
  std::atomic<int> from_retained = 0;
  for (FakeWorker* prefill : {&first, &second}) {
    prefill->set_retains_kv(true);
    prefill->set_prefill([&, prefill](int call, auto* context, const auto& request, auto* writer) {
      EXPECT_EQ(request.use_retained_kv(), call == 2);
      from_retained += request.use_retained_kv() ? 1 : 0;
      prefill->set_free_slots(0);
      return prefill->NormalPrefill(context, request, writer);
    });
  }
  decode.set_decode([&](int call, auto* context, const auto& request, auto* writer) {
    if (call > 1) {
      return decode.NormalDecode(context, request, writer);
    }
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    decode.WriteToken(0, writer);
    return kGone;
  });
  Start();
  const StreamOutcome outcome = Stream(Request(6));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.token_ids.size(), 6u);
  EXPECT_EQ(from_retained, 1);
  EXPECT_EQ(first.calls() * second.calls(), 0) << "one worker prefilled and shipped again";
  EXPECT_TRUE(WaitUntil([&] { return first.releases() + second.releases() == 1; }));
  ExpectBaseline();
}

// A way from prefill to decode that fails twice is given up; so is KV that arrives damaged twice.
TEST_F(RetryTest, KvThatCannotBeShippedAgainIsPrefilledByAnother) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DATA_LOSS}) {
    SCOPED_TRACE(code);
    FakeWorker& first = AddPrefill();
    FakeWorker& second = AddPrefill();
    AddDecode();
    std::atomic<int> failures = 0;
    for (FakeWorker* prefill : {&first, &second}) {
      prefill->set_retains_kv(true);
      prefill->set_prefill([&, prefill](int, auto* context, const auto& request, auto* writer) {
        EXPECT_EQ(request.use_retained_kv(), failures == 1);
        if (failures == 2) {
          return prefill->NormalPrefill(context, request, writer);
        }
        ++failures;
        worker::v1::PrefillEvent accepted;
        accepted.mutable_accepted()->set_retains_kv(true);
        writer->Write(accepted);
        return rpc::ToGrpcStatus(
            code == grpc::StatusCode::DATA_LOSS
                ? absl::DataLossError("checksum")
                : rpc::WithReason(absl::UnavailableError("reset"), rpc::reason::kDecodeLost));
      });
    }
    Start();
    const StreamOutcome outcome = Stream(Request(3));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(std::max(first.calls(), second.calls()), 2);
    EXPECT_EQ(std::min(first.calls(), second.calls()), 1);
    EXPECT_TRUE(WaitUntil([&] { return first.releases() == 1 && second.releases() == 1; }));
    ExpectBaseline();
    router_.reset();
    prefills_.clear();
    decodes_.clear();
  }
}

TEST_F(RetryTest, DecodeLostBehindTheLastTokenLosesNothing) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    decode.WriteToken(0, writer);
    worker::v1::DecodeEvent event;
    event.mutable_finished()->set_reason(worker::v1::FINISH_REASON_LENGTH);
    writer->Write(event);
    return kGone;
  });
  Start();
  const StreamOutcome outcome = Stream(Request(2));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(300, 301));
  EXPECT_EQ(decode.calls(), 1);
  ExpectBaseline();
}

TEST_F(RetryTest, DecodeLostAgainAndAgainAbortsWithTheCount) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    const uint64_t reservation = decode.WriteReserved(request, writer);
    handoffs_.WaitForCommit(reservation, context);
    if (request.delivered_size() == 0) {
      decode.WriteToken(0, writer);
      decode.WriteToken(0, writer);
    }
    return kGone;
  });
  Start();
  const StreamOutcome outcome = Stream(Request(8));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kAborted) << outcome.status;
  EXPECT_EQ(rpc::ReasonOf(outcome.status), "DECODE_LOST");
  EXPECT_EQ(rpc::ReasonMetadata(outcome.status)["tokens_delivered"], "3");
  EXPECT_EQ(outcome.token_ids.size(), 3u) << "what was counted was delivered";
  ExpectBaseline();
}

TEST_F(RetryTest, ADecodeStreamThatEndsOkWithoutUsageIsAnError) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    decode.WriteToken(0, writer);
    return grpc::Status::OK;
  });
  Start();
  EXPECT_EQ(Stream(Request(8)).status.code(), absl::StatusCode::kAborted);
  ExpectBaseline();
}

// Catalogue T20: a restarted worker serves again, and nothing hangs meanwhile.
TEST_F(RetryTest, ARestartedWorkerIsFoundAgain) {
  FakeWorker& prefill = AddPrefill();
  FakeWorker& decode = AddDecode();
  Start();
  ASSERT_TRUE(Stream(Request(2)).status.ok());
  const int prefill_port = prefill.port();
  const int decode_port = decode.port();
  prefill.Kill();
  decode.Kill();
  ASSERT_TRUE(WaitUntil([this] { return !ready(); }));
  prefill.Start(prefill_port);
  decode.Start(decode_port);
  ASSERT_TRUE(WaitUntil([this] { return ready(); }));
  EXPECT_TRUE(Stream(Request(2)).status.ok());
}

TEST_F(RetryTest, APrefillKilledInTheMiddleIsWaitedForUntilItIsBack) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  std::atomic<bool> running{false};
  prefill.set_prefill([&](int call, auto* context, const auto& request, auto* writer) {
    if (call == 1) {
      running = true;
      WaitForCancel(context);
      return kGone;
    }
    return prefill.NormalPrefill(context, request, writer);
  });
  Start();
  StreamOutcome outcome;
  std::thread client([&] { outcome = Stream(Request(3)); });
  EXPECT_TRUE(WaitUntil([&] { return running.load(); }));
  const int port = prefill.port();
  prefill.Kill();
  prefill.Start(port);
  client.join();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.token_ids.size(), 3u);
}

}  // namespace
}  // namespace baton::router
