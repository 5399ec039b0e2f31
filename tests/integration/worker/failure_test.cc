// Whoever goes away, at whatever stage: every page returns and the others hear why
// (serving.md 3.3).
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "proto/baton/worker/v1/control.grpc.pb.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

// Prefills for long enough to be interrupted.
constexpr int kLongPrompt = 6000;

class FailureTest : public testing::Test {
 protected:
  void SetUp() override {
    worker::WorkerOptions prefill_options = TinyOptions(engine::Role::kPrefill);
    prefill_options.engine.prefill_chunk_tokens = 64;
    prefill_ = StartPrefill(prefill_options);
    decode_options_ = TinyOptions(engine::Role::kDecode);
    // Nobody renews here; leases have a test of their own.
    decode_options_.engine.lease = absl::Minutes(5);
    decode_ = StartDecode(decode_options_);
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr);
    prefill_channel_ = ChannelTo(prefill_->worker());
    decode_channel_ = ChannelTo(decode_->worker());
  }

  // The pair still serves, which also shows that no page is lost.
  void ExpectStillServing() {
    const Outcome outcome =
        RunSplit(prefill_channel_, decode_channel_, GreedyRequest("afterwards", 40, 4));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens.at(0).size(), 4U);
  }

  worker::WorkerOptions decode_options_;
  std::unique_ptr<prefill::PrefillServer> prefill_;
  std::unique_ptr<decode::DecodeServer> decode_;
  std::shared_ptr<grpc::Channel> prefill_channel_;
  std::shared_ptr<grpc::Channel> decode_channel_;
};

// Who ends a request, and on which side.
enum class Ender { kPrefillCall, kDecodeCall, kPrefillControl, kDecodeControl };
constexpr Ender kEnders[] = {
    Ender::kPrefillCall, Ender::kDecodeCall, Ender::kPrefillControl, Ender::kDecodeControl};

void AbortByControl(const std::shared_ptr<grpc::Channel>& channel, const std::string& id) {
  grpc::ClientContext context;
  worker::v1::AbortRequest request;
  request.add_request_ids(id);
  worker::v1::AbortResponse response;
  EXPECT_TRUE(worker::v1::Control::NewStub(channel)->Abort(&context, request, &response).ok());
}

// Catalogue T6: whoever ends it first and whoever second, both sides are free again.
TEST_F(FailureTest, AbortsOfBothSidesInEveryOrderReturnThePagesOfBoth) {
  for (const Ender first : kEnders) {
    for (const Ender second : kEnders) {
      SCOPED_TRACE(testing::Message() << "first " << static_cast<int>(first) << ", second "
                                      << static_cast<int>(second));
      const Request request = GreedyRequest("r", 2000, 10);
      DecodeCall decode_call(decode_channel_, request, false);
      worker::v1::Reserved reserved;
      ASSERT_TRUE(decode_call.ReadReserved(&reserved));
      PrefillCall prefill_call(prefill_channel_, request, reserved);
      ASSERT_TRUE(prefill_call.ReadUntilProgress());
      for (const Ender ender : {first, second}) {
        switch (ender) {
          case Ender::kPrefillCall:
            prefill_call.Cancel();
            break;
          case Ender::kDecodeCall:
            decode_call.Cancel();
            break;
          case Ender::kPrefillControl:
            AbortByControl(prefill_channel_, request.id);
            break;
          case Ender::kDecodeControl:
            AbortByControl(decode_channel_, request.id);
            break;
        }
      }
      const bool decode_hears = first == Ender::kDecodeCall || first == Ender::kDecodeControl ||
                                second == Ender::kDecodeCall || second == Ender::kDecodeControl;
      EXPECT_TRUE(AtBaseline(prefill_->worker()));
      if (!decode_hears) {
        decode_call.Cancel();  // as a router does that has lost its prefill
      }
      EXPECT_TRUE(AtBaseline(decode_->worker()));
    }
  }
  ExpectStillServing();
}

// Catalogue T8: the client leaves when prefill is done and decode has not run a step for it.
TEST_F(FailureTest, CancelBetweenTheCommitAndTheFirstDecodedTokenReturnsItsPages) {
  for (int round = 0; round < 20; ++round) {
    const Request request = GreedyRequest("r", 60, 2000);
    DecodeCall decode_call(decode_channel_, request, false);
    worker::v1::Reserved reserved;
    ASSERT_TRUE(decode_call.ReadReserved(&reserved));
    Outcome outcome;
    outcome.tokens.resize(1);
    outcome.finished.resize(1);
    PrefillCall(prefill_channel_, request, reserved).ReadAll(outcome);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    decode_call.Cancel();
    EXPECT_TRUE(AtBaseline(prefill_->worker()));
    EXPECT_TRUE(AtBaseline(decode_->worker()));
  }
  ExpectStillServing();
}

TEST_F(FailureTest, CancelAfterTheReservationReturnsItsPages) {
  DecodeCall call(decode_channel_, GreedyRequest("r", 500, 100), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  EXPECT_TRUE(Eventually([&] { return decode_->worker().engine().load().pages_reserved > 0; }));
  call.Cancel();
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  ExpectStillServing();
}

TEST_F(FailureTest, CancelDuringPrefillReturnsThePagesOfBothSides) {
  const Request request = GreedyRequest("r", kLongPrompt, 10);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall prefill_call(prefill_channel_, request, reserved);
  ASSERT_TRUE(prefill_call.ReadUntilProgress());
  prefill_call.Cancel();
  EXPECT_EQ(prefill_call.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  decode_call.Cancel();
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  ExpectStillServing();
}

TEST_F(FailureTest, CancelOfDecodeDuringPrefillEndsThePrefillToo) {
  const Request request = GreedyRequest("r", kLongPrompt, 10);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall prefill_call(prefill_channel_, request, reserved);
  ASSERT_TRUE(prefill_call.ReadUntilProgress());
  decode_call.Cancel();
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  worker::v1::PrefillEvent event;
  while (prefill_call.Read(&event)) {
    EXPECT_FALSE(event.has_committed()) << "nothing may be committed to a reservation that is gone";
  }
  EXPECT_FALSE(prefill_call.Finish().ok());
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  ExpectStillServing();
}

TEST_F(FailureTest, CancelDuringDecodeReturnsItsPages) {
  const Request request = GreedyRequest("r", 60, 2000);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  Outcome outcome;
  outcome.tokens.resize(1);
  outcome.finished.resize(1);
  PrefillCall(prefill_channel_, request, reserved).ReadAll(outcome);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  worker::v1::DecodeEvent event;
  ASSERT_TRUE(decode_call.Read(&event));
  EXPECT_TRUE(event.has_tokens());
  decode_call.Cancel();
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  ExpectStillServing();
}

TEST_F(FailureTest, DeadlineEndsTheRequestOnBothSides) {
  Request request = GreedyRequest("r", kLongPrompt, 10);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  request.deadline = absl::Now() + absl::Milliseconds(300);
  PrefillCall prefill_call(prefill_channel_, request, reserved);
  worker::v1::PrefillEvent event;
  while (prefill_call.Read(&event)) {
  }
  EXPECT_EQ(prefill_call.Finish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  decode_call.Cancel();
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

// Catalogue T9
TEST_F(FailureTest, LostDecodeEndsThePrefillAsUnavailableAndItsPagesReturn) {
  const Request request = GreedyRequest("r", kLongPrompt, 10);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall prefill_call(prefill_channel_, request, reserved);
  ASSERT_TRUE(prefill_call.ReadUntilProgress());
  decode_->Shutdown(absl::ZeroDuration());
  worker::v1::PrefillEvent event;
  while (prefill_call.Read(&event)) {
    EXPECT_FALSE(event.has_committed());
  }
  const absl::Status status = prefill_call.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(rpc::ReasonOf(status), rpc::reason::kDecodeLost) << status;
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
}

// Catalogue T20
TEST_F(FailureTest, DecodeThatCameBackOnItsPortIsUsedAgain) {
  ExpectStillServing();
  const std::string address = decode_->worker().address();
  decode_.reset();
  decode_options_.listen = address;
  decode_ = StartDecode(decode_options_);
  ASSERT_NE(decode_, nullptr);
  decode_channel_ = ChannelTo(decode_->worker());
  // The first request may still meet the dead connection; the second may not.
  EXPECT_TRUE(Eventually([&] {
    return RunSplit(prefill_channel_, decode_channel_, GreedyRequest("again", 40, 4)).status.ok();
  }));
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(FailureTest, LostPrefillLeavesTheReservationToTheNextAttempt) {
  const Request request = GreedyRequest("r", kLongPrompt, 6);
  DecodeCall decode_call(decode_channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall first(prefill_channel_, request, reserved, 1);
  ASSERT_TRUE(first.ReadUntilProgress());
  prefill_->Shutdown(absl::ZeroDuration());
  worker::v1::PrefillEvent event;
  while (first.Read(&event)) {
  }
  EXPECT_FALSE(first.Finish().ok());
  const auto second_worker = StartPrefill(TinyOptions(engine::Role::kPrefill));
  ASSERT_NE(second_worker, nullptr);
  Outcome outcome;
  outcome.tokens.resize(1);
  outcome.finished.resize(1);
  PrefillCall(ChannelTo(second_worker->worker()), request, reserved, 2).ReadAll(outcome);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  decode_call.ReadAll(outcome);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.tokens[0].size(), 6U);
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

// Catalogue T1: nobody tells decode that prefill and router are gone; the lease ends it.
TEST(LeaseTest, ReservationLivesWhileRenewedAndExpiresAfterwards) {
  worker::WorkerOptions options = TinyOptions(engine::Role::kDecode);
  options.engine.lease = absl::Milliseconds(400);
  const auto decode = StartDecode(options);
  ASSERT_NE(decode, nullptr);
  const auto channel = ChannelTo(decode->worker());
  DecodeCall call(channel, GreedyRequest("r", 500, 100), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  const auto stub = worker::v1::Decode::NewStub(channel);
  const auto renew = [&] {
    grpc::ClientContext context;
    worker::v1::RenewLeaseRequest request;
    request.set_reservation_id(reserved.reservation_id());
    request.set_epoch(reserved.epoch());
    worker::v1::RenewLeaseResponse response;
    return rpc::FromGrpcStatus(stub->RenewLease(&context, request, &response));
  };
  const absl::Time granted = absl::Now();
  while (absl::Now() < granted + absl::Seconds(1)) {
    ASSERT_EQ(renew(), absl::OkStatus());
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_TRUE(Eventually([&] { return decode->worker().engine().load().pages_reserved > 0; }));
  worker::v1::DecodeEvent event;
  EXPECT_FALSE(call.Read(&event)) << "the stream ends when the lease does";
  EXPECT_FALSE(call.Finish().ok());
  EXPECT_TRUE(AtBaseline(decode->worker()));
  const absl::Status late = renew();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition) << late;
  EXPECT_EQ(rpc::ReasonOf(late), rpc::reason::kStaleEpoch);
  EXPECT_NE(decode->worker().metrics().registry().Text().find(
                "baton_kv_leases_expired_total{model_name=\"tiny-llama-needle\",role=\"decode\","
                "side=\"decode\"} 1"),
            std::string::npos);
}

}  // namespace
}  // namespace baton
