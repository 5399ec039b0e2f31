// The state machine of a request against scripted events: normal, refused, lost and cut at each
// point.
#include "services/router/session/request_flow.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "tests/unit/router/test_model.h"

namespace baton::router {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Phase = RequestFlow::Phase;

class CountingObserver final : public FlowObserver {
 public:
  void OnFirstToken(absl::Duration since) override { first_token = since; }
  void OnTokenGap(absl::Duration /*gap*/, int tokens) override { gap_tokens += tokens; }
  void OnRetry(RetryReason reason) override { retries.push_back(reason); }

  std::optional<absl::Duration> first_token;
  int gap_tokens = 0;
  std::vector<RetryReason> retries;
};

class RequestFlowTest : public ::testing::Test {
 protected:
  void Start(uint32_t n = 1, std::vector<std::string> stop = {}, size_t buffer_bytes = 1 << 18) {
    plan_.request_id = "r";
    plan_.model = "needle";
    plan_.kv_policy = "dense";
    plan_.prompt_tokens = 10;
    plan_.prompt_token_ids = std::make_shared<std::string>(40, '\0');
    plan_.sampling.set_n(n);
    plan_.sampling.set_max_tokens(8);
    plan_.output.stop = std::move(stop);
    plan_.received = now_;
    auto flow = RequestFlow::Create(&plan_,
                                    TestModel().tokenizer.tokenizer.get(),
                                    {.max_attempts = 3, .max_stream_buffer_bytes = buffer_bytes},
                                    &observer_);
    ASSERT_TRUE(flow.ok()) << flow.status();
    flow_.emplace(*std::move(flow));
    flow_->OnQueued(now_);
    flow_->TakeCommands();
  }

  std::vector<FlowCommand> Take() {
    now_ += absl::Milliseconds(1);
    return flow_->TakeCommands();
  }

  std::vector<FlowCommand> Reserve(bool local = false) {
    flow_->OnPair(local, now_);
    EXPECT_THAT(Take(), ElementsAre(FlowCommand::kOpenDecode));
    worker::v1::DecodeEvent event;
    event.mutable_reserved()->set_reservation_id(5);
    event.mutable_reserved()->set_local_prefill(local);
    event.mutable_reserved()->set_pages_per_layer(1);
    auto* layout = event.mutable_reserved()->mutable_layout();
    layout->set_layers(12);
    layout->set_kv_heads(2);
    layout->set_head_dim(64);
    layout->set_page_bytes(4096);
    flow_->OnDecodeEvent(event, now_);
    return Take();
  }

  static int32_t Token(const std::string& text) {
    return TestModel().tokenizer.tokenizer->Encode(text, false)->at(0);
  }

  worker::v1::PrefillEvent FirstTokens(const std::vector<std::string>& texts) {
    worker::v1::PrefillEvent event;
    for (uint32_t i = 0; i < texts.size(); ++i) {
      auto* delta = event.mutable_first_tokens()->add_tokens();
      delta->set_index(i);
      delta->add_tokens()->set_id(static_cast<uint32_t>(Token(texts[i])));
    }
    return event;
  }

  void SendFirst(const std::string& text = "1") {
    flow_->OnPrefillEvent(FirstTokens({text}), now_);
  }
  void SendCommit() {
    worker::v1::PrefillEvent event;
    event.mutable_committed()->set_kv_wire_bytes(777);
    event.mutable_committed()->set_transport("grpc");
    flow_->OnPrefillEvent(event, now_);
  }
  void SendTokens(const std::string& text, uint32_t index = 0) {
    worker::v1::DecodeEvent event;
    event.mutable_tokens()->set_index(index);
    event.mutable_tokens()->add_tokens()->set_id(static_cast<uint32_t>(Token(text)));
    flow_->OnDecodeEvent(event, now_);
  }
  void SendFinished(uint32_t index = 0) {
    worker::v1::DecodeEvent event;
    event.mutable_finished()->set_index(index);
    event.mutable_finished()->set_reason(worker::v1::FINISH_REASON_LENGTH);
    flow_->OnDecodeEvent(event, now_);
  }
  void SendUsage() {
    worker::v1::DecodeEvent event;
    event.mutable_usage()->set_kv_resident_bytes(888);
    flow_->OnDecodeEvent(event, now_);
  }

  // Everything that waits for the client, as a short script: "S", "D:text", "F", "U".
  std::vector<std::string> Output() {
    std::vector<std::string> script;
    inference::v1::GenerateStreamResponse message;
    while (flow_->output().Pop(&message)) {
      script.push_back(message.has_started()    ? "S"
                       : message.has_delta()    ? "D:" + message.delta().text()
                       : message.has_finished() ? "F"
                                                : "U");
    }
    return script;
  }

  RequestPlan plan_;
  CountingObserver observer_;
  std::optional<RequestFlow> flow_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

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

// Other workers are not asked, and no other policy is served instead.
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

TEST_F(RequestFlowTest, AnotherFirstTokenOfARepeatedPrefillAborts) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  SendFirst("2");
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "1");
}

TEST_F(RequestFlowTest, PrefillLostForGoodAfterTheFirstTokenAborts) {
  Start();
  Reserve();
  SendFirst("1");
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWaitExpired(/*other_pair=*/true, now_);
  ASSERT_TRUE(flow_->ended()) << "another pair would repeat the token";
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "PREFILL_LOST");
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "1");
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

// What the client has seen binds the request to its reservation.
TEST_F(RequestFlowTest, DataLossBehindTheFirstTokenKeepsTheReservationToTheEnd) {
  Start();
  Reserve();
  SendFirst();
  for (uint32_t attempt = 2; attempt <= 3; ++attempt) {
    flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
    ASSERT_FALSE(flow_->ended());
    EXPECT_THAT(Take(), Not(Contains(FlowCommand::kCancelDecode)));
    flow_->OnPrefillWorker(now_);
    EXPECT_EQ(flow_->attempt(), attempt);
  }
  flow_->OnPrefillEnd(absl::DataLossError("checksum"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kDataLoss);
}

// Catalogue T3
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

TEST_F(RequestFlowTest, DecodeLostAfterTheFirstTokenAbortsWithTheCount) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  SendTokens("2");
  flow_->OnDecodeEnd(absl::UnavailableError("gone"), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rpc::ReasonOf(flow_->final_status()), "DECODE_LOST");
  EXPECT_EQ(rpc::ReasonMetadata(flow_->final_status()).at("tokens_delivered"), "2");
  EXPECT_THAT(Output(), ElementsAre("S", "D:12")) << "what was counted is delivered";
}

TEST_F(RequestFlowTest, DecodeEndingOkWithoutUsageIsAnErrorNotSuccess) {
  Start();
  Reserve();
  SendFirst();
  SendCommit();
  flow_->OnDecodeEnd(absl::OkStatus(), now_);
  ASSERT_TRUE(flow_->ended());
  EXPECT_EQ(flow_->final_status().code(), absl::StatusCode::kAborted);
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

TEST_F(RequestFlowTest, ARepeatRefusedByDecodeMeansAnEarlierAttemptWasCommitted) {
  Start();
  Reserve();
  SendFirst();
  flow_->OnPrefillEnd(absl::UnavailableError("gone"), now_);
  flow_->OnPrefillWorker(now_);
  flow_->OnPrefillEnd(absl::FailedPreconditionError("committed already"), now_);
  EXPECT_EQ(flow_->phase(), Phase::kDecoding);
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

// Catalogue T25
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
