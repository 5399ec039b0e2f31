// What a worker refuses: with which code, reason and retry advice (serving.md 7.3).
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

absl::Status StatusOf(const std::shared_ptr<grpc::Channel>& channel,
                      const Request& request,
                      bool with_prompt = false) {
  DecodeCall call(channel, request, with_prompt);
  worker::v1::Reserved reserved;
  EXPECT_FALSE(call.ReadReserved(&reserved));
  return call.Finish();
}

class RefusalTest : public testing::Test {
 protected:
  void SetUp() override {
    worker::WorkerOptions options = TinyOptions(engine::Role::kDecode);
    options.pools.dense = int64_t{16} << 20;
    decode_ = StartDecode(options);
    ASSERT_NE(decode_, nullptr);
    channel_ = ChannelTo(decode_->worker());
  }

  std::unique_ptr<decode::DecodeServer> decode_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RefusalTest, FullPoolIsResourceExhaustedWithRetryAdviceUntilPagesReturn) {
  // 16 MiB hold about 2,700 tokens of 6 KiB.
  auto first = std::make_unique<DecodeCall>(channel_, GreedyRequest("a", 1500, 100), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(first->ReadReserved(&reserved));
  const absl::Status full = StatusOf(channel_, GreedyRequest("b", 1500, 100));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(rpc::ReasonOf(full), rpc::reason::kKvPoolFull);
  EXPECT_TRUE(rpc::RetryAfter(full).has_value());
  first.reset();
  ASSERT_TRUE(AtBaseline(decode_->worker()));
  DecodeCall second(channel_, GreedyRequest("b", 1500, 100), false);
  EXPECT_TRUE(second.ReadReserved(&reserved));
}

TEST_F(RefusalTest, RequestThatCanNeverFitIsInvalidWithoutRetryAdvice) {
  const absl::Status status = StatusOf(channel_, GreedyRequest("a", 9000, 100));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(rpc::ReasonOf(status), rpc::reason::kExceedsCapacity);
  EXPECT_FALSE(rpc::RetryAfter(status).has_value());
}

TEST_F(RefusalTest, DuplicateIdIsRefusedAndTheRunningRequestStays) {
  DecodeCall first(channel_, GreedyRequest("same", 100, 10), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(first.ReadReserved(&reserved));
  EXPECT_EQ(StatusOf(channel_, GreedyRequest("same", 100, 10)).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Eventually([&] { return decode_->worker().engine().load().reservations == 1; }));
}

TEST_F(RefusalTest, FieldsThatMakeNoSenseAreNamed) {
  const absl::Status no_id = StatusOf(channel_, GreedyRequest("", 100, 10));
  ASSERT_EQ(rpc::FieldViolations(no_id).size(), 1U) << no_id;
  EXPECT_EQ(rpc::FieldViolations(no_id)[0].field, "request_id");
  EXPECT_EQ(StatusOf(channel_, GreedyRequest("a", 100, 0)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf(channel_, GreedyRequest("a", 0, 10)).code(),
            absl::StatusCode::kInvalidArgument);
  Request hot = GreedyRequest("a", 100, 10);
  hot.sampling.set_temperature(-1);
  EXPECT_EQ(StatusOf(channel_, hot).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RefusalTest, PromptForAWorkerOfRoleDecodeIsTheWrongRole) {
  const absl::Status status = StatusOf(channel_, GreedyRequest("a", 100, 10), true);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::ReasonOf(status), rpc::reason::kWrongRole);
}

// Catalogue T16: a layout that differs is refused at the handshake.
TEST_F(RefusalTest, PrefillWithAnotherPageLayoutIsRefusedByDecodeAndTheRouterHearsIt) {
  worker::WorkerOptions options = TinyOptions(engine::Role::kPrefill);
  options.engine.page_tokens = 16;
  const auto prefill = StartPrefill(options);
  ASSERT_NE(prefill, nullptr);
  const Outcome outcome =
      RunSplit(ChannelTo(prefill->worker()), channel_, GreedyRequest("a", 100, 10));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition) << outcome.status;
  EXPECT_EQ(rpc::ReasonOf(outcome.status), rpc::reason::kLayoutMismatch);
  EXPECT_TRUE(AtBaseline(prefill->worker()));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(RefusalTest, PrefillRequestWithoutReservationOrAttemptIsInvalid) {
  const auto prefill = StartPrefill(TinyOptions(engine::Role::kPrefill));
  ASSERT_NE(prefill, nullptr);
  const auto channel = ChannelTo(prefill->worker());
  PrefillCall no_address(channel, GreedyRequest("a", 100, 10), {});
  worker::v1::PrefillEvent event;
  EXPECT_FALSE(no_address.Read(&event));
  const absl::Status status = no_address.Finish();
  ASSERT_EQ(rpc::FieldViolations(status).size(), 1U) << status;
  EXPECT_EQ(rpc::FieldViolations(status)[0].field, "reservation.control_address");
  PrefillCall no_attempt(channel, GreedyRequest("a", 100, 10), {}, 0);
  EXPECT_FALSE(no_attempt.Read(&event));
  EXPECT_EQ(rpc::FieldViolations(no_attempt.Finish()).at(0).field, "attempt");
}

// Catalogue T2: what decode refuses, prefill gives up in the middle, and its pages with it.
TEST_F(RefusalTest, PrefillReturnsItsPagesWithinASecondOfDecodesRefusal) {
  worker::WorkerOptions options = TinyOptions(engine::Role::kPrefill);
  options.engine.prefill_chunk_tokens = 64;
  const auto prefill = StartPrefill(options);
  ASSERT_NE(prefill, nullptr);
  const Request request = GreedyRequest("a", 2000, 10);
  DecodeCall call(channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  reserved.set_epoch(reserved.epoch() + 1);
  PrefillCall refused(ChannelTo(prefill->worker()), request, reserved);
  worker::v1::PrefillEvent event;
  while (refused.Read(&event)) {
    EXPECT_FALSE(event.has_first_tokens()) << "the whole prompt was computed for nothing";
  }
  EXPECT_EQ(refused.Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(AtBaseline(prefill->worker(), absl::Seconds(1)));
}

TEST_F(RefusalTest, StaleEpochIsRefusedAndLeavesTheReservationAlone) {
  const auto prefill = StartPrefill(TinyOptions(engine::Role::kPrefill));
  ASSERT_NE(prefill, nullptr);
  const Request request = GreedyRequest("a", 100, 10);
  DecodeCall call(channel_, request, false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  worker::v1::Reserved stale = reserved;
  stale.set_epoch(reserved.epoch() + 1);
  Outcome refused;
  refused.tokens.resize(1);
  refused.finished.resize(1);
  PrefillCall(ChannelTo(prefill->worker()), request, stale).ReadAll(refused);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kFailedPrecondition) << refused.status;
  EXPECT_EQ(rpc::ReasonOf(refused.status), rpc::reason::kStaleEpoch);
  Outcome accepted;
  accepted.tokens.resize(1);
  accepted.finished.resize(1);
  PrefillCall(ChannelTo(prefill->worker()), request, reserved, 2).ReadAll(accepted);
  EXPECT_TRUE(accepted.status.ok()) << accepted.status;
}

TEST(StartUpTest, ErrorsNameWhatIsWrong) {
  worker::WorkerOptions options = TinyOptions(engine::Role::kDecode);
  options.model_dir = "/nonexistent-model";
  const auto no_model = decode::DecodeServer::Start(options);
  ASSERT_FALSE(no_model.ok());
  EXPECT_NE(std::string(no_model.status().message()).find("/nonexistent-model"), std::string::npos);
  options = TinyOptions(engine::Role::kPrefill);
  options.device = "abacus";
  const auto no_device = prefill::PrefillServer::Start(options);
  ASSERT_FALSE(no_device.ok());
  EXPECT_NE(std::string(no_device.status().message()).find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace baton
