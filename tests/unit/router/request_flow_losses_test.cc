// The state machine of a request whose workers or KV are lost at each point: what is sent again,
// what starts over, what ends.
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "services/router/session/request_flow.h"
#include "tests/unit/router/request_flow_fixture.h"

namespace baton::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Phase = RequestFlow::Phase;

TEST_F(RequestFlowTest, LostPrefillIsTriedAgainWithTheSameReservation) {
  Start();
  Reserve();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kCancelPrefill, FlowCommand::kWaitForPrefill));
  EXPECT_EQ(flow_->phase(), Phase::kAwaitingPrefill);
  flow_->OnPrefillWorker(now_);
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kOpenPrefill));
  EXPECT_EQ(flow_->attempt(), 2u);
  EXPECT_EQ(flow_->reservation().reservation_id(), 5u);
}

TEST_F(RequestFlowTest, AStreamThatEndsOkWithoutItsCommitIsALostPrefill) {
  Start();
  Reserve();
  flow_->OnPrefillEnd(absl::OkStatus(), now_);
  EXPECT_EQ(flow_->phase(), Phase::kAwaitingPrefill);
}

TEST_F(RequestFlowTest, ARepeatedFirstTokenIsDropped) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  SendFirst("1");
  SendCommit();
  EXPECT_FALSE(flow_->ended());
  EXPECT_THAT(Output(), ElementsAre("S", "D:1"));
}

TEST_F(RequestFlowTest, AnotherFirstTokenOfARepeatedPrefillIsContinuedFromTheClientsByANextPair) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  SendFirst("2");
  ASSERT_FALSE(flow_->ended());
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  EXPECT_THAT(flow_->delivered(), ElementsAre(ElementsAre(Token("1"))));
  Reserve();
  SendFirst("2");
  SendCommit();
  SendTokens("3");
  EXPECT_FALSE(flow_->ended());
  EXPECT_THAT(Output(), ElementsAre("S", "D:13"));
}

TEST_F(RequestFlowTest, ARepeatedPrefillThatEndsWhatTheClientSawBeginAborts) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  worker::v1::PrefillEvent stopped;
  worker::v1::SequenceFinished* finished = stopped.mutable_first_tokens()->add_finished();
  finished->set_reason(worker::v1::FINISH_REASON_STOP);
  finished->set_stop_token_id(4084);
  flow_->OnPrefillEvent(stopped, now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "1");
}

TEST_F(RequestFlowTest, PrefillLostForGoodAfterTheFirstTokenGoesOnWithAnotherPairIfThereIsOne) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWaitExpired(/*other_pair=*/true, now_);
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  Reserve();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWaitExpired(/*other_pair=*/false, now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "PREFILL_LOST");
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "1");
  EXPECT_THAT(observer_.resumes, ElementsAre(false));
}

TEST_F(RequestFlowTest, PrefillLossesAreBounded) {
  Start();
  Reserve();
  for (int i = 0; i < 2; ++i) {
    flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
    ASSERT_FALSE(flow_->ended());
    flow_->OnPrefillWorker(now_);
  }
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "PREFILL_LOST");
  EXPECT_TRUE(rpc::RetryAfter(flow_->final_status()).has_value());
  EXPECT_THAT(Take(), Contains(FlowCommand::kCancelDecode));
  EXPECT_EQ(flow_->usage().retries(), 2u);
}

TEST_F(RequestFlowTest, DataLossIsSentAgainThenPrefilledAnewThenTheEnd) {
  Start();
  Reserve();
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  ASSERT_FALSE(flow_->ended());
  EXPECT_THAT(Take(), Not(Contains(FlowCommand::kCancelDecode))) << "the reservation stays";
  flow_->OnPrefillWorker(now_);
  EXPECT_EQ(flow_->attempt(), 2u);
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  ASSERT_FALSE(flow_->ended());
  EXPECT_THAT(Take(), Contains(FlowCommand::kCancelDecode)) << "a new reservation";
  Reserve();
  EXPECT_EQ(flow_->attempt(), 1u);
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RequestFlowTest, DataLossBehindTheFirstTokenIsSentAgainThenContinuedElsewhereThenTheEnd) {
  Start();
  Reserve();
  SendFirst();
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  EXPECT_THAT(Take(), Not(Contains(FlowCommand::kCancelDecode))) << "the reservation stays";
  flow_->OnPrefillWorker(now_);
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue)) << "a new reservation";
  Reserve();
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RequestFlowTest, DecodeLostBeforeTheFirstTokenStartsOverOnAnotherPair) {
  Start();
  Reserve();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  EXPECT_THAT(Take(),
              ElementsAre(FlowCommand::kCancelPrefill,
                          FlowCommand::kCancelDecode,
                          FlowCommand::kStopLease,
                          FlowCommand::kRequeue));
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  Reserve();
  EXPECT_EQ(flow_->attempt(), 1u) << "attempts belong to a reservation";
}

TEST_F(RequestFlowTest, DecodeLostAfterTheFirstTokenIsContinuedByAnotherPair) {
  Start();
  Reserve();
  EXPECT_THAT(flow_->delivered(), IsEmpty());
  SendFirst();
  SendCommit();
  SendTokens("2");
  Take();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue));
  EXPECT_EQ(flow_->kv_policy(), "dense") << "as it was served, whatever the plan asks for";
  ASSERT_EQ(flow_->delivered().size(), 1u);
  EXPECT_THAT(flow_->delivered()[0], ElementsAre(Token("1"), Token("2")));
  Reserve();
  SendFirst();  // the prompt's prefill gives it again
  EXPECT_THAT(observer_.resumes, IsEmpty());
  SendCommit();
  EXPECT_THAT(observer_.resumes, ElementsAre(true));
  SendTokens("3");
  SendFinished();
  SendUsage();
  flow_->OnPrefillEnd(absl::OkStatus(), now_);
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok()) << flow_->final_status();
  EXPECT_THAT(Output(), ElementsAre("S", "D:123", "F", "U"));
  EXPECT_EQ(flow_->usage().completion_tokens(), 3u);
  EXPECT_EQ(flow_->usage().resumes(), 1u);
}

TEST_F(RequestFlowTest, DecodeLostWhilePrefillRetainsTheKvLetsItCompute) {
  Start();
  Reserve();
  flow_->OnKvRetained(true);
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  EXPECT_THAT(Take(),
              ElementsAre(FlowCommand::kLeavePrefill,
                          FlowCommand::kCancelDecode,
                          FlowCommand::kStopLease,
                          FlowCommand::kRequeue));
}

TEST_F(RequestFlowTest, DecodeLostToAPrefillThatRetainsTheKvStartsOverOnAnotherPair) {
  const absl::Status lost =
      rpc::WithReason(absl::UnavailableError("reset"), rpc::reason::kDecodeLost);
  Start();
  Reserve();
  flow_->OnPrefillEnd(lost, now_);
  EXPECT_EQ(flow_->phase(), Phase::kAwaitingPrefill) << "nobody has the KV";
  flow_->OnPrefillWorker(now_);
  flow_->OnKvRetained(true);
  flow_->OnPrefillEnd(lost, now_);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue));
  EXPECT_EQ(observer_.retries.back(), RetryReason::kDecodeLost);
}

TEST_F(RequestFlowTest, AResumeSaysWhereThePromptsKvCameFrom) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  for (const bool from_retained : {true, false}) {
    flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
    Reserve();
    worker::v1::PrefillEvent accepted;
    accepted.mutable_accepted()->set_from_retained_kv(from_retained);
    flow_->OnPrefillEvent(accepted, now_);
    SendFirst();
    SendCommit();
  }
  EXPECT_THAT(observer_.resumes, ElementsAre(true, true));
  EXPECT_THAT(observer_.from_retained_kv, ElementsAre(true, false));
}

TEST_F(RequestFlowTest, AContinuedAnswerMayOvertakeItsRepeatedFirstToken) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  Reserve();
  SendTokens("2");
  SendFirst();
  EXPECT_THAT(Output(), ElementsAre("S", "D:12"));
}

TEST_F(RequestFlowTest, ASequenceThatHadNotBegunTakesItsFirstTokenFromTheNextPrefill) {
  Start(/*n=*/2);
  Reserve(/*local=*/true);
  SendTokens("1", 0);
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  Take();
  Reserve();
  SendTokens("2", 1);  // held: its first token is still to come
  EXPECT_THAT(Output(), ElementsAre("S", "D:1"));
  flow_->OnPrefillEvent(FirstTokens({"1", "4"}), now_);
  EXPECT_THAT(Output(), ElementsAre("D:42"));
}

TEST_F(RequestFlowTest, AnotherFirstTokenOfTheNextPairGivesWayToTheClients) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  Reserve();
  SendFirst("2");
  SendCommit();
  SendTokens("3");
  EXPECT_FALSE(flow_->ended());
  EXPECT_THAT(Output(), ElementsAre("S", "D:13"));
}

TEST_F(RequestFlowTest, AnAnswerThatNobodyCanContinueAbortsWithTheCount) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  SendTokens("2");
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  flow_->OnEndpointsGone(now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "DECODE_LOST");
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "2");
  EXPECT_THAT(observer_.resumes, ElementsAre(false));
  EXPECT_THAT(Output(), ElementsAre("S", "D:12")) << "what was counted is delivered";
}

TEST_F(RequestFlowTest, AWorkerThatRefusesToContinueForGoodAborts) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPair(/*local_prefill=*/false, now_);
  flow_->OnDecodeEnd(absl::InvalidArgumentError("too long here"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
}

TEST_F(RequestFlowTest, DecodeEndingOkWithoutUsageIsALoss) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  EXPECT_THAT(observer_.retries, ElementsAre(RetryReason::kDecodeLost));
}

TEST_F(RequestFlowTest, DecodeSpeakingMeansCommittedEvenIfPrefillDiedBeforeSayingSo) {
  Start();
  Reserve();
  SendFirst();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  Take();
  SendTokens("2");
  EXPECT_THAT(Take(), Contains(FlowCommand::kLeaveQueue));
  SendFinished();
  SendUsage();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok()) << flow_->final_status();
}

TEST_F(RequestFlowTest, FirstTokensThatDiedWithTheirWorkerAfterTheCommitStartOver) {
  Start();
  Reserve();
  SendTokens("2");  // held: decode runs, but the first token never came
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue));
  EXPECT_TRUE(flow_->output().empty());
}

TEST_F(RequestFlowTest, ARepeatWhoseReservationHasEndedMeansAnEarlierAttemptWasCommitted) {
  Start();
  Reserve();
  SendFirst();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  flow_->OnPrefillEnd(
      rpc::WithReason(absl::FailedPreconditionError("committed already"), rpc::reason::kStaleEpoch),
      now_);
  EXPECT_EQ(flow_->phase(), Phase::kDecoding);
}

// As by a worker of another layout, or without a transport in common.
TEST_F(RequestFlowTest, ARepeatThatPrefillItselfRefusesIsTriedElsewhereAtOnce) {
  Start();
  Reserve();
  SendFirst();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  Take();
  flow_->OnPrefillEnd(absl::FailedPreconditionError("the layouts differ"), now_);
  EXPECT_EQ(flow_->phase(), Phase::kAwaitingPrefill);
  EXPECT_THAT(Take(), Contains(FlowCommand::kWaitForPrefill));
}

TEST_F(RequestFlowTest, AWaitForPrefillThatExpiresStartsOverOrFails) {
  Start();
  Reserve();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWaitExpired(/*other_pair=*/true, now_);
  EXPECT_EQ(flow_->phase(), Phase::kQueued);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue));
  Reserve();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWaitExpired(/*other_pair=*/false, now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "PREFILL_LOST");
}

}  // namespace
}  // namespace baton::router
