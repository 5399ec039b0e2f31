// The state machine of a request against scripted events: normal, refused, stopped and cut at each
// point.
#include "services/router/session/request_flow.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "tests/unit/router/request_flow_fixture.h"

namespace baton::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Phase = RequestFlow::Phase;

TEST_F(RequestFlowTest, ATurnThatDecodeGoesOnWithNeedsNoPrefill) {
  plan_.session_id = "talk";
  Start();
  flow_->OnPair(/*local_prefill=*/false, now_);
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kOpenDecode));
  worker::v1::DecodeEvent event;
  event.mutable_reserved()->set_local_prefill(true);
  flow_->OnDecodeEvent(event, now_);
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kCancelPrefill, FlowCommand::kReadDecode))
      << "the pair's prefill worker is given back";
  SendTokens("1");
  EXPECT_THAT(Output(), ElementsAre("S", "D:1"));
  SendFinished();
  worker::v1::DecodeEvent usage;
  usage.mutable_usage()->set_cached_tokens(7);
  flow_->OnDecodeEvent(usage, now_);
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  EXPECT_TRUE(flow_->final_status().ok()) << flow_->final_status();
  EXPECT_EQ(flow_->usage().cached_tokens(), 7u);
  EXPECT_EQ(flow_->usage().kv_wire_bytes(), 0u);
}

TEST_F(RequestFlowTest, ATurnWhoseDecodeIsLostStartsOverWithAWholePrefill) {
  plan_.session_id = "talk";
  Start();
  flow_->OnPair(/*local_prefill=*/false, now_);
  Take();
  worker::v1::DecodeEvent event;
  event.mutable_reserved()->set_local_prefill(true);
  flow_->OnDecodeEvent(event, now_);
  Take();
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  EXPECT_THAT(Take(), Contains(FlowCommand::kRequeue));
  EXPECT_THAT(
      Reserve(),
      ElementsAre(FlowCommand::kStartLease, FlowCommand::kOpenPrefill, FlowCommand::kReadDecode));
}

TEST_F(RequestFlowTest, OnlyATurnMayBeGoneOnWithoutPrefill) {
  Start();
  flow_->OnPair(/*local_prefill=*/false, now_);
  Take();
  worker::v1::DecodeEvent event;
  event.mutable_reserved()->set_local_prefill(true);
  flow_->OnDecodeEvent(event, now_);
  EXPECT_TRUE(absl::IsFailedPrecondition(flow_->final_status())) << flow_->final_status();
}

TEST_F(RequestFlowTest, ANormalRequestGoesThroughEveryPhase) {
  Start();
  EXPECT_EQ(flow_->phase_name(), "queue");
  EXPECT_THAT(
      Reserve(),
      ElementsAre(FlowCommand::kStartLease, FlowCommand::kOpenPrefill, FlowCommand::kReadDecode));
  EXPECT_EQ(flow_->attempt(), 1u);
  EXPECT_EQ(flow_->phase_name(), "prefill");
  SendFirst();
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kNotifyClient));
  EXPECT_THAT(Output(), ElementsAre("S", "D:1"));
  EXPECT_EQ(flow_->phase_name(), "transfer");
  SendCommit();
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kStopLease));
  EXPECT_EQ(flow_->phase_name(), "decode");
  flow_->OnPrefillEnd(absl::OkStatus(), now_);
  SendTokens("2");
  SendFinished();
  SendUsage();
  EXPECT_FALSE(flow_->ended()) << "the stream's status is still out";
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok());
  EXPECT_THAT(Output(), ElementsAre("D:2", "F", "U"));
  EXPECT_EQ(flow_->usage().completion_tokens(), 2u);
  EXPECT_EQ(flow_->usage().kv_wire_bytes(), 777u);
  EXPECT_EQ(flow_->usage().kv_resident_bytes(), 888u);
  EXPECT_EQ(flow_->usage().transport(), "grpc");
  EXPECT_EQ(observer_.gap_tokens, 1);
  EXPECT_TRUE(observer_.first_token.has_value());
}

TEST_F(RequestFlowTest, NothingIsSentBeforeTheFirstToken) {
  Start();
  Reserve();
  EXPECT_TRUE(flow_->output().empty());
}

TEST_F(RequestFlowTest, DecodeTokensWaitForPrefillsFirstTokens) {
  Start();
  Reserve();
  SendTokens("2");
  EXPECT_THAT(Take(), Not(Contains(FlowCommand::kReadDecode)));
  EXPECT_TRUE(flow_->output().empty());
  SendFirst();
  EXPECT_THAT(Take(), Contains(FlowCommand::kReadDecode));
  EXPECT_THAT(Output(), ElementsAre("S", "D:12"));
}

TEST_F(RequestFlowTest, ARefusalByDecodeGoesBackToTheQueueWithoutCounting) {
  Start();
  for (int i = 0; i < 10; ++i) {
    flow_->OnPair(false, now_);
    Take();
    flow_->OnDecodeEnd(absl::ResourceExhaustedError("pool full"), now_);
    EXPECT_THAT(Take(), ElementsAre(FlowCommand::kCancelDecode, FlowCommand::kRequeue));
    EXPECT_EQ(flow_->phase(), Phase::kQueued);
  }
  EXPECT_EQ(observer_.retries.size(), 10u);
}

TEST_F(RequestFlowTest, DecodesInvalidArgumentReachesTheClient) {
  Start();
  flow_->OnPair(false, now_);
  flow_->OnDecodeEnd(absl::InvalidArgumentError("too large"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RequestFlowTest, APolicyThatIsNotServedReachesTheClientAndIsNotTriedAgain) {
  const absl::Status not_served =
      rpc::WithReason(absl::FailedPreconditionError("fp8"), rpc::reason::kPolicyNotServed);
  Start();
  flow_->OnPair(false, now_);
  flow_->OnDecodeEnd(not_served, now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status(), not_served);
  Start();
  Reserve();
  flow_->OnPrefillEnd(not_served, now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status(), not_served);
  EXPECT_THAT(Take(), testing::Contains(FlowCommand::kCancelDecode));
  EXPECT_TRUE(observer_.retries.empty());
}

TEST_F(RequestFlowTest, PrefillsInvalidArgumentReachesTheClientAndFreesTheReservation) {
  Start();
  Reserve();
  flow_->OnPrefillEnd(absl::InvalidArgumentError("bad prompt"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      Take(),
      ElementsAre(FlowCommand::kCancelDecode, FlowCommand::kStopLease, FlowCommand::kNotifyClient));
}

TEST_F(RequestFlowTest, AFullPrefillWorkerIsWaitedForWithoutCounting) {
  Start();
  Reserve();
  for (int i = 0; i < 10; ++i) {
    flow_->OnPrefillEnd(absl::ResourceExhaustedError("full"), now_);
    ASSERT_EQ(flow_->phase(), Phase::kAwaitingPrefill);
    flow_->OnPrefillWorker(now_);
  }
  EXPECT_EQ(flow_->attempt(), 11u);
}

TEST_F(RequestFlowTest, AStopStringEndsBothWorkerCallsAtOnce) {
  Start(1, {"2"});
  Reserve();
  SendFirst("1");
  SendTokens("2");
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok());
  const auto commands = Take();
  EXPECT_THAT(commands, Contains(FlowCommand::kCancelPrefill));
  EXPECT_THAT(commands, Contains(FlowCommand::kCancelDecode));
  EXPECT_THAT(Output(), ElementsAre("S", "D:1", "F", "U"));
  EXPECT_EQ(flow_->usage().kv_logical_bytes(), 10u * 12 * 2 * 2 * 64 * 2);
  EXPECT_EQ(flow_->usage().kv_resident_bytes(), 12u * 4096);
}

TEST_F(RequestFlowTest, EverySequenceIsFinishedOnceBeforeUsage) {
  Start(2);
  Reserve();
  worker::v1::PrefillEvent first = FirstTokens({"1", "2"});
  auto* finished = first.mutable_first_tokens()->add_finished();
  finished->set_index(1);
  finished->set_reason(worker::v1::FINISH_REASON_STOP);
  flow_->OnPrefillEvent(first, now_);
  SendCommit();
  flow_->OnPrefillEnd(absl::OkStatus(), now_);
  SendFinished(1);  // decode repeats it
  SendFinished(0);
  SendUsage();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  const auto script = Output();
  EXPECT_EQ(std::ranges::count(script, "F"), 2);
  EXPECT_EQ(script.back(), "U");
}

TEST_F(RequestFlowTest, AFirstTokenThatIsAStopTokenFinishesWithoutText) {
  Start();
  Reserve();
  worker::v1::PrefillEvent event;
  auto* finished = event.mutable_first_tokens()->add_finished();
  finished->set_reason(worker::v1::FINISH_REASON_STOP);
  finished->set_stop_token_id(4084);
  flow_->OnPrefillEvent(event, now_);
  SendCommit();
  flow_->OnPrefillEnd(absl::OkStatus(), now_);
  SendUsage();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok());
  EXPECT_THAT(Output(), ElementsAre("S", "F", "U"));
  EXPECT_EQ(flow_->usage().completion_tokens(), 1u);
}

TEST_F(RequestFlowTest, RoleBothNeedsNoPrefillCall) {
  Start();
  const auto commands = Reserve(/*local=*/true);
  EXPECT_THAT(commands, ElementsAre(FlowCommand::kReadDecode));
  SendTokens("1");
  EXPECT_TRUE(observer_.first_token.has_value());
  SendFinished();
  SendUsage();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_TRUE(flow_->final_status().ok());
  EXPECT_EQ(flow_->usage().kv_wire_bytes(), 0u);
  EXPECT_FALSE(flow_->timeline().committed.has_value()) << "there was no transfer to be timed";
}

TEST_F(RequestFlowTest, ASlowClientStopsTheReadingOfDecodeUntilItCatchesUp) {
  Start(1, {}, /*buffer_bytes=*/600);
  Reserve();
  SendFirst();
  SendCommit();
  Take();
  int messages = 0;
  bool reading = true;
  while (reading && messages < 1000) {
    SendTokens("2");
    ++messages;
    const auto commands = Take();
    reading = std::ranges::count(commands, FlowCommand::kReadDecode) > 0;
  }
  EXPECT_LT(messages, 1000);
  EXPECT_LT(flow_->output().bytes(), 700u);
  inference::v1::GenerateStreamResponse message;
  while (flow_->output().Pop(&message)) {
  }
  flow_->OnOutputTaken();
  EXPECT_THAT(Take(), ElementsAre(FlowCommand::kReadDecode));
  flow_->OnOutputTaken();
  EXPECT_THAT(Take(), IsEmpty()) << "one read at a time";
}

TEST_F(RequestFlowTest, ADeadlineNamesThePhaseAndEndsBothCalls) {
  const auto check = [&](const std::string& phase) {
    flow_->OnDeadline(now_);
    ASSERT_TRUE(flow_->ended());
    EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("phase"), phase);
  };
  Start();
  check("queue");
  EXPECT_THAT(Take(), Contains(FlowCommand::kLeaveQueue));
  Start();
  Reserve();
  check("prefill");
  EXPECT_THAT(Take(),
              ElementsAre(FlowCommand::kCancelPrefill,
                          FlowCommand::kCancelDecode,
                          FlowCommand::kStopLease,
                          FlowCommand::kNotifyClient));
  Start();
  Reserve();
  SendFirst();
  check("transfer");
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  Take();
  check("decode");
  EXPECT_THAT(
      Take(),
      ElementsAre(
          FlowCommand::kCancelPrefill, FlowCommand::kCancelDecode, FlowCommand::kNotifyClient));
}

TEST_F(RequestFlowTest, ACancelledClientLeavesNothingOpenAtAnyPoint) {
  for (int point = 0; point < 5; ++point) {
    SCOPED_TRACE(point);
    Start();
    if (point >= 1) Reserve();
    if (point >= 2) SendFirst();
    if (point >= 3) SendCommit();
    if (point >= 4) SendTokens("2");
    Take();
    flow_->OnClientCancelled(now_);
    ASSERT_TRUE(flow_->ended());
    EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kCancelled);
    const auto commands = Take();
    EXPECT_THAT(commands,
                Contains(point == 0 ? FlowCommand::kLeaveQueue : FlowCommand::kCancelDecode));
    EXPECT_TRUE(flow_->output().empty());
    flow_->OnDecodeEnd(absl::CancelledError(""), now_);
    flow_->OnPrefillEnd(absl::CancelledError(""), now_);
    EXPECT_THAT(Take(), IsEmpty()) << "late events do nothing";
  }
}

TEST_F(RequestFlowTest, AWorkerThatBreaksTheProtocolIsAnInternalError) {
  Start();
  Reserve();
  SendCommit();  // without first tokens
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kInternal);
  Start();
  Reserve();
  flow_->OnPrefillEvent(FirstTokens({"1", "2"}), now_);  // two sequences, one was asked for
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kInternal);
  Start();
  Reserve();
  SendFirst();
  SendTokens("2", /*index=*/7);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace baton::router
