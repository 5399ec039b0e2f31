// Control, health and TLS of running workers.
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "common/rpc/health_client.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/tls.h"
#include "common/worker/worker_options.h"
#include "proto/baton/worker/v1/control.grpc.pb.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

using worker::v1::Control;

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    worker::WorkerOptions options = TinyOptions(engine::Role::kDecode);
    options.host_label = "node-1";
    decode_ = StartDecode(options);
    ASSERT_NE(decode_, nullptr);
    channel_ = ChannelTo(decode_->worker());
    stub_ = Control::NewStub(channel_);
  }

  bool Serving(const std::string& name) {
    const auto serving = rpc::CheckHealth(channel_, name, absl::Now() + absl::Seconds(20));
    EXPECT_TRUE(serving.ok()) << name << ": " << serving.status();
    return serving.ok() && *serving;
  }

  std::unique_ptr<decode::DecodeServer> decode_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Control::Stub> stub_;
};

TEST_F(ControlTest, ServerInfoSaysWhatTheWorkerIs) {
  grpc::ClientContext context;
  worker::v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.role(), worker::v1::ROLE_DECODE);
  EXPECT_EQ(info.version(), "test");
  EXPECT_EQ(info.model_name(), "tiny-llama-needle");
  EXPECT_EQ(info.max_sequence_tokens(), 32768U);
  EXPECT_EQ(info.layout().layers(), 12U);
  EXPECT_EQ(info.layout().page_tokens(), 32U);
  EXPECT_NE(info.incarnation(), 0U);
  // 64 MiB of pages of 32 tokens x 2 x 2 heads x 64 x 2 bytes = 16 KiB, shared by 12 layers.
  EXPECT_EQ(info.kv_pool_tokens(), uint64_t{4096} / 12 * 32);
  ASSERT_EQ(info.transports_size(), 1);
  EXPECT_EQ(info.transports(0), "grpc");
  EXPECT_EQ(info.host(), "node-1");
  EXPECT_EQ(info.rack(), "");
  EXPECT_EQ(info.control_address(), decode_->worker().address());
}

TEST_F(ControlTest, LoadsFollowReservations) {
  const auto loads = [&] {
    grpc::ClientContext context;
    worker::v1::Loads result;
    EXPECT_TRUE(stub_->GetLoads(&context, {}, &result).ok());
    return result;
  };
  EXPECT_TRUE(loads().ready());
  EXPECT_EQ(loads().free_slots(), 16U);
  EXPECT_EQ(loads().pages_free(), loads().pages_total());
  DecodeCall call(channel_, GreedyRequest("r", 100, 10), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  // The snapshot follows the grant.
  EXPECT_TRUE(Eventually([&] { return loads().reservations() == 1; }));
  EXPECT_EQ(loads().free_slots(), 15U);
  EXPECT_EQ(loads().pages_reserved(), loads().pages_total() - loads().pages_free());
}

TEST_F(ControlTest, WatchLoadsReportsAtOnceThenAgainAndEndsWithTheCall) {
  grpc::ClientContext context;
  worker::v1::WatchLoadsRequest request;
  request.mutable_interval()->set_nanos(10'000'000);
  const auto reader = stub_->WatchLoads(&context, request);
  worker::v1::Loads loads;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader->Read(&loads));
    EXPECT_EQ(loads.incarnation(), decode_->worker().incarnation());
  }
  context.TryCancel();
  while (reader->Read(&loads)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ControlTest, WatchLoadsReportsRoomBeforeTheIntervalIsOver) {
  grpc::ClientContext context;
  worker::v1::WatchLoadsRequest request;
  request.mutable_interval()->set_seconds(10);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(8)));
  DecodeCall call(channel_, GreedyRequest("r", 100, 10), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  const auto held = [&] {
    grpc::ClientContext loads_context;
    worker::v1::Loads loads;
    EXPECT_TRUE(stub_->GetLoads(&loads_context, {}, &loads).ok());
    return loads.reservations() == 1;
  };
  ASSERT_TRUE(Eventually(held));
  const auto reader = stub_->WatchLoads(&context, request);
  worker::v1::Loads loads;
  ASSERT_TRUE(reader->Read(&loads));
  EXPECT_LT(loads.pages_free(), loads.pages_total());
  call.Cancel();
  while (loads.pages_free() < loads.pages_total() || loads.free_slots() < 16U) {
    ASSERT_TRUE(reader->Read(&loads));
  }
  context.TryCancel();
  while (reader->Read(&loads)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ControlTest, WatchLoadsRefusesAnIntervalThatIsTooShort) {
  grpc::ClientContext context;
  worker::v1::WatchLoadsRequest request;
  request.mutable_interval()->set_nanos(1);
  const auto reader = stub_->WatchLoads(&context, request);
  worker::v1::Loads loads;
  EXPECT_FALSE(reader->Read(&loads));
  const absl::Status status = rpc::FromGrpcStatus(reader->Finish());
  EXPECT_EQ(rpc::FieldViolations(status).at(0).field, "interval");
}

TEST_F(ControlTest, AbortEndsTheNamedRequestWithCancelled) {
  DecodeCall call(channel_, GreedyRequest("r", 100, 10), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(call.ReadReserved(&reserved));
  grpc::ClientContext context;
  worker::v1::AbortRequest request;
  request.add_request_ids("no-such-request");
  request.add_request_ids("r");
  worker::v1::AbortResponse response;
  ASSERT_TRUE(stub_->Abort(&context, request, &response).ok());
  worker::v1::DecodeEvent event;
  EXPECT_FALSE(call.Read(&event));
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(ControlTest, DrainTurnsReadinessOffAndRefusesNewRequestsWhileOthersStay) {
  EXPECT_TRUE(Serving(""));
  EXPECT_TRUE(Serving("readiness"));
  EXPECT_TRUE(Serving("liveness"));
  EXPECT_TRUE(Serving("baton.worker.v1.Decode"));
  EXPECT_TRUE(Serving("baton.worker.v1.KvTransfer"));
  EXPECT_TRUE(Serving("baton.worker.v1.Control"));
  DecodeCall running(channel_, GreedyRequest("running", 100, 10), false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(running.ReadReserved(&reserved));
  grpc::ClientContext context;
  worker::v1::DrainResponse response;
  ASSERT_TRUE(stub_->Drain(&context, {}, &response).ok());
  EXPECT_TRUE(Eventually([&] { return !Serving("readiness"); }));
  EXPECT_FALSE(Serving(""));
  EXPECT_FALSE(Serving("baton.worker.v1.Decode"));
  EXPECT_TRUE(Serving("liveness"));
  DecodeCall refused(channel_, GreedyRequest("new", 100, 10), false);
  EXPECT_FALSE(refused.ReadReserved(&reserved));
  const absl::Status status = refused.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::ReasonOf(status), rpc::reason::kDraining);
  EXPECT_TRUE(Eventually([&] { return decode_->worker().engine().load().reservations == 1; }));
}

TEST_F(ControlTest, UnknownLogLevelIsRefused) {
  grpc::ClientContext context;
  worker::v1::SetLogLevelRequest request;
  request.set_level("chatty");
  worker::v1::SetLogLevelResponse response;
  EXPECT_EQ(stub_->SetLogLevel(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// Catalogue T4: work without a finished step is said, not hidden behind a healthy answer.
TEST(StallTest, HealthFollowsProgress) {
  // Of a step that lasts several of the health monitor's periods (100 ms) on fast machines too.
  constexpr int32_t kPrompt = 4000;
  worker::WorkerOptions options = TinyOptions(engine::Role::kBoth);
  options.stall_timeout = absl::Milliseconds(50);
  options.engine.step_token_budget = options.engine.prefill_chunk_tokens = kPrompt;  // one step
  const auto decode = StartDecode(options);
  ASSERT_NE(decode, nullptr);
  const auto channel = ChannelTo(decode->worker());
  const auto serving = [&](const std::string& name) {
    const auto answer = rpc::CheckHealth(channel, name, absl::Now() + absl::Seconds(20));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && *answer;
  };
  const auto all = [&](bool wanted) {
    return serving("readiness") == wanted && serving("liveness") == wanted && serving("") == wanted;
  };
  EXPECT_TRUE(Eventually([&] { return all(true); }));
  DecodeCall call(channel, GreedyRequest("long", kPrompt, 2), /*with_prompt=*/true);
  EXPECT_TRUE(Eventually([&] { return all(false); }));
  call.Cancel();
  EXPECT_TRUE(Eventually([&] { return all(true); }));
}

TEST(TlsPairTest, AWorkerWithACertificateOfAnotherRootHandsNothingOver) {
  const std::string folder = std::string(BATON_SOURCE_DIR) + "/tests/data/tls/";
  const std::string ca = folder + "ca.pem";
  const rpc::TlsOptions own = {
      .cert = folder + "worker.pem", .key = folder + "worker.key", .ca = ca};
  worker::WorkerOptions options = TinyOptions(engine::Role::kDecode);
  options.tls = own;
  const auto decode = StartDecode(options);
  options = TinyOptions(engine::Role::kPrefill);
  options.tls = {.cert = folder + "stranger.pem", .key = folder + "stranger.key", .ca = ca};
  const auto stranger = StartPrefill(options);
  ASSERT_TRUE(decode != nullptr && stranger != nullptr);
  rpc::TlsOptions to_stranger = own;
  to_stranger.ca = folder + "other_ca.pem";
  const Outcome outcome = RunSplit(ChannelTo(stranger->worker(), to_stranger),
                                   ChannelTo(decode->worker(), own),
                                   GreedyRequest("r", 100, 5));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable) << outcome.status;
  EXPECT_EQ(rpc::ReasonOf(outcome.status), rpc::reason::kDecodeLost) << outcome.status;
  EXPECT_TRUE(AtBaseline(stranger->worker()));
  EXPECT_TRUE(AtBaseline(decode->worker()));
}

TEST(TlsPairTest, MutualTlsBetweenRolesCarriesARequest) {
  const std::string folder = std::string(BATON_SOURCE_DIR) + "/tests/data/tls/";
  const rpc::TlsOptions tls = {
      .cert = folder + "worker.pem", .key = folder + "worker.key", .ca = folder + "ca.pem"};
  worker::WorkerOptions options = TinyOptions(engine::Role::kPrefill);
  options.tls = tls;
  const auto prefill = StartPrefill(options);
  options.engine.role = engine::Role::kDecode;
  const auto decode = StartDecode(options);
  ASSERT_TRUE(prefill != nullptr && decode != nullptr);
  const Outcome outcome = RunSplit(ChannelTo(prefill->worker(), tls),
                                   ChannelTo(decode->worker(), tls),
                                   GreedyRequest("r", 100, 5));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.tokens.at(0).size(), 5U);
  const Outcome stranger = RunSplit(ChannelTo(prefill->worker(), tls),
                                    ChannelTo(decode->worker(), {.ca = folder + "ca.pem"}),
                                    GreedyRequest("r", 100, 5));
  EXPECT_EQ(stranger.status.code(), absl::StatusCode::kUnavailable)
      << "a caller without a certificate must not get in";
}

}  // namespace
}  // namespace baton
