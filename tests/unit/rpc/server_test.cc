#include "common/rpc/server.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

#include "common/rpc/channel.h"
#include "common/rpc/health_client.h"
#include "common/rpc/limits.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/unit/rpc/control_fixture.h"

namespace baton::rpc {
namespace {

using worker::v1::Control;

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = Server::Start({.listen = "127.0.0.1:0",
                                 .tls = {},
                                 .exposure = Exposure::kInternal,
                                 .services = {&service_},
                                 .health_names = {"readiness", "baton.worker.v1.Control"}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *MakeChannel(server_->address(), {}, Exposure::kInternal);
  }

  absl::StatusOr<bool> Health(const std::string& name) {
    return CheckHealth(channel_, name, absl::Now() + absl::Seconds(20));
  }

  FixedControl service_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerTest, ReportsThePortThatItTook) {
  EXPECT_GT(server_->port(), 0);
  EXPECT_EQ(server_->address(), absl::StrCat("127.0.0.1:", server_->port()));
}

TEST_F(ServerTest, HealthStartsNotServingAndFollowsSetServing) {
  EXPECT_FALSE(*Health(""));
  EXPECT_FALSE(*Health("readiness"));
  EXPECT_FALSE(*Health("baton.worker.v1.Control"));
  EXPECT_TRUE(*Health("liveness"));
  server_->SetServing("readiness", true);
  EXPECT_TRUE(*Health("readiness"));
  server_->SetServing("readiness", false);
  EXPECT_FALSE(*Health("readiness"));
  EXPECT_EQ(Health("no.such.Service").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServerTest, StatusDetailsMetadataAndPushbackCrossTheWire) {
  service_.status = ResourceExhausted(reason::kQueueFull, "queue full", absl::Milliseconds(700));
  grpc::ClientContext context;
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  AddRequestMetadata({.request_id = "r-7", .traceparent = trace, .tracestate = "a=b"}, &context);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  SetDeadline(deadline, &context);
  worker::v1::Loads loads;
  const absl::Status status =
      FromGrpcStatus(Control::NewStub(channel_)->GetLoads(&context, {}, &loads));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(700));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "700");
  EXPECT_EQ(service_.metadata.request_id, "r-7");
  EXPECT_EQ(service_.metadata.traceparent, trace);
  EXPECT_EQ(service_.metadata.tracestate, "a=b");
  EXPECT_LT(service_.deadline, absl::InfiniteFuture());
}

TEST_F(ServerTest, MalformedTraceContextIsDroppedAndTheCallGoesOn) {
  grpc::ClientContext context;
  AddRequestMetadata({.request_id = "r-8", .traceparent = "00-a-b-01", .tracestate = "a=b"},
                     &context);
  SetDeadline(absl::Now() + absl::Seconds(60), &context);
  worker::v1::Loads loads;
  EXPECT_TRUE(Control::NewStub(channel_)->GetLoads(&context, {}, &loads).ok());
  EXPECT_EQ(service_.metadata.request_id, "r-8");
  EXPECT_EQ(service_.metadata.traceparent, "");
  EXPECT_EQ(service_.metadata.tracestate, "");
}

TEST_F(ServerTest, ReflectionIsOn) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  SetDeadline(absl::Now() + absl::Seconds(20), &context);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(reinterpret_cast<void*>(1));
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  // ServerReflectionRequest{list_services (7): "*"}.
  const grpc::Slice request(std::string("\x3a\x01*"));
  call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), reinterpret_cast<void*>(2));
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer response;
  call->Read(&response, reinterpret_cast<void*>(3));
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice slice;
  ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
  const std::string text(reinterpret_cast<const char*>(slice.begin()), slice.size());
  EXPECT_NE(text.find("baton.worker.v1.Control"), std::string::npos);
  grpc::Status status;
  call->Finish(&status, reinterpret_cast<void*>(4));
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok());
}

TEST_F(ServerTest, SecondServerOnTheSamePortIsRefused) {
  FixedControl service;
  const auto second = Server::Start(
      {.listen = server_->address(), .tls = {}, .services = {&service}, .health_names = {}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ServerTest, AddressWithoutPortIsRefused) {
  EXPECT_EQ(Server::Start({.listen = "localhost", .tls = {}, .services = {}, .health_names = {}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ServerTest, ShutdownEndsTheService) {
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_FALSE(Health("").ok());
}

}  // namespace
}  // namespace baton::rpc
