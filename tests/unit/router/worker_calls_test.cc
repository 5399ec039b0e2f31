#include "services/router/workers/worker_calls.h"

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "proto/baton/worker/v1/prefill.pb.h"

namespace baton::router {
namespace {

using worker::v1::ReleaseRequest;
using worker::v1::ReleaseResponse;
using Done = std::function<void(grpc::Status)>;

class WorkerCallsTest : public testing::Test {
 protected:
  // A call that is under way until its element of dones_ is called.
  void Make() {
    calls_.Make<ReleaseResponse>(
        ReleaseRequest(),
        absl::Minutes(1),
        [this](grpc::ClientContext* /*context*/,
               const ReleaseRequest* /*request*/,
               ReleaseResponse* /*response*/,
               Done done) { dones_.push_back(std::move(done)); },
        [this](const grpc::Status& status) { ended_.push_back(status.error_code()); });
  }

  WorkerCalls calls_;
  std::vector<Done> dones_;
  std::vector<grpc::StatusCode> ended_;
};

TEST_F(WorkerCallsTest, StopWaitsForCallsUnderWay) {
  Make();
  Make();
  ASSERT_EQ(dones_.size(), 2u);
  dones_[1](grpc::Status::OK);
  absl::Notification stopped;
  std::thread stop([&] {
    EXPECT_TRUE(calls_.Stop(absl::Minutes(1)));
    stopped.Notify();
  });
  EXPECT_FALSE(stopped.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  dones_[0](grpc::Status(grpc::StatusCode::NOT_FOUND, "no such request"));
  stop.join();
  EXPECT_EQ(ended_, (std::vector{grpc::StatusCode::OK, grpc::StatusCode::NOT_FOUND}));
}

TEST_F(WorkerCallsTest, NoCallIsMadeAfterStop) {
  EXPECT_TRUE(calls_.Stop(absl::ZeroDuration()));
  Make();
  EXPECT_TRUE(dones_.empty());
  EXPECT_TRUE(ended_.empty());
  EXPECT_TRUE(calls_.Stop(absl::ZeroDuration()));
}

// Nobody listens there, and the call waits for somebody.
TEST_F(WorkerCallsTest, WhatIsUnderWayIsCancelledWhenTheGraceIsOver) {
  const auto stub = worker::v1::Prefill::NewStub(
      grpc::CreateChannel("ipv4:127.0.0.1:1", grpc::InsecureChannelCredentials()));
  calls_.Make<ReleaseResponse>(
      ReleaseRequest(),
      absl::Minutes(1),
      [&](grpc::ClientContext* context,
          const ReleaseRequest* request,
          ReleaseResponse* response,
          Done done) {
        context->set_wait_for_ready(true);
        stub->async()->Release(context, request, response, std::move(done));
      },
      [this](const grpc::Status& status) { ended_.push_back(status.error_code()); });
  EXPECT_TRUE(calls_.Stop(absl::Milliseconds(20)));
  EXPECT_EQ(ended_, std::vector{grpc::StatusCode::CANCELLED});
}

// What a call holds is let go before Stop returns.
TEST_F(WorkerCallsTest, ACallThatEndedHoldsNothing) {
  const auto held = std::make_shared<int>();
  const std::weak_ptr<int> watch = held;
  Done done;
  calls_.Make<ReleaseResponse>(
      ReleaseRequest(),
      absl::Minutes(1),
      [&](grpc::ClientContext* /*context*/,
          const ReleaseRequest* /*request*/,
          ReleaseResponse* /*response*/,
          Done end) { done = std::move(end); },
      [held](const grpc::Status& /*status*/) {});
  EXPECT_EQ(watch.use_count(), 2);
  done(grpc::Status::OK);
  EXPECT_EQ(watch.use_count(), 1);
}

}  // namespace
}  // namespace baton::router
