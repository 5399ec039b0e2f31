// Cancellation and deadlines in every phase: both workers' calls end, the status says where.
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

// Where a request is made to stay.
enum class Point { kQueue, kReserving, kPrefill, kTransfer, kDecode };

struct PointCase {
  const char* name;
  Point point;
  const char* phase;
};

class StuckTest : public RouterFixture, public ::testing::WithParamInterface<PointCase> {
 protected:
  // Workers that let a request come as far as the point and no further.
  void StartStuck() {
    FakeWorker& prefill = AddPrefill();
    FakeWorker& decode = AddDecode();
    const Point point = GetParam().point;
    if (point == Point::kQueue) {
      prefill.set_free_slots(0);
    }
    prefill.set_prefill([this, point, &prefill](
                            int, grpc::ServerContext* context, const auto& request, auto* writer) {
      if (point == Point::kTransfer) {
        prefill.WriteFirstTokens(request, writer);
      }
      if (point != Point::kDecode) {
        reached_ = true;
        WaitForCancel(context);
        return grpc::Status::CANCELLED;
      }
      return prefill.NormalPrefill(context, request, writer);
    });
    decode.set_decode([this, point, &decode](
                          int, grpc::ServerContext* context, const auto& request, auto* writer) {
      if (point == Point::kReserving) {
        reached_ = true;
        WaitForCancel(context);
        return grpc::Status::CANCELLED;
      }
      const uint64_t reservation = decode.WriteReserved(request, writer);
      if (handoffs_.WaitForCommit(reservation, context)) {
        decode.WriteToken(0, writer);
        reached_ = true;
        WaitForCancel(context);
      }
      return grpc::Status::CANCELLED;
    });
    Start();
  }
  bool Reached() const {
    return GetParam().point == Point::kQueue ? router_->core().admission->queued().requests == 1
                                             : reached_.load();
  }

  std::atomic<bool> reached_{false};
};

// Catalogue T6: a client that leaves takes both workers' calls with it.
TEST_P(StuckTest, ACancelledRequestEndsBothCallsAtOnce) {
  StartStuck();
  grpc::ClientContext context;
  const auto reader = stub_->GenerateStream(&context, Request(8));
  ASSERT_TRUE(WaitUntil([this] { return Reached(); }));
  context.TryCancel();
  inference::v1::GenerateStreamResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  EXPECT_TRUE(WaitUntil([this] { return router_->core().running.size() == 0; }));
  EXPECT_TRUE(WaitUntil([this] { return router_->core().admission->queued().requests == 0; }));
}

TEST_P(StuckTest, ADeadlineNamesThePhaseAndEndsBothCalls) {
  StartStuck();
  const StreamOutcome outcome = Stream(Request(8), absl::Seconds(2));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded) << outcome.status;
  EXPECT_EQ(rpc::ReasonMetadata(outcome.status)["phase"], GetParam().phase);
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  EXPECT_EQ(router_->core().running.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Points,
                         StuckTest,
                         ::testing::Values(PointCase{"Queue", Point::kQueue, "queue"},
                                           PointCase{"Reserving", Point::kReserving, "queue"},
                                           PointCase{"Prefill", Point::kPrefill, "prefill"},
                                           PointCase{"Transfer", Point::kTransfer, "transfer"},
                                           PointCase{"Decode", Point::kDecode, "decode"}),
                         [](const auto& param) { return std::string(param.param.name); });

class CancelStormTest : public RouterFixture {};

// Catalogue T4 in small: requests cancelled at random moments leave nothing behind.
TEST_F(CancelStormTest, RandomCancellationsLeaveNothingOpen) {
  AddPrefill();
  AddDecode();
  Start();
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 25; ++i) {
        grpc::ClientContext context;
        const auto reader = stub_->GenerateStream(&context, Request(200));
        std::thread canceller([&context, wait = random() % 4000] {
          absl::SleepFor(absl::Microseconds(static_cast<int64_t>(wait)));
          context.TryCancel();
        });
        inference::v1::GenerateStreamResponse message;
        while (reader->Read(&message)) {
        }
        reader->Finish();
        canceller.join();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle() && router_->core().running.size() == 0; }));
  EXPECT_EQ(router_->core().admission->queued().requests, 0);
  EXPECT_TRUE(Stream(Request(4)).status.ok());
}

}  // namespace
}  // namespace baton::router
