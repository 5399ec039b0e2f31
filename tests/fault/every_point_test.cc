// A process is killed or stands still, the client leaves or the time is up, at every point of a
// request's life: the client gets the right status, and whoever survives returns every page and
// serves on.
#include <array>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/fault/request_at_point.h"
#include "tests/fault/transports.h"
#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";
constexpr absl::Duration kLease = absl::Seconds(4);
// Of the first try; a slow machine gets more time to come to the point.
constexpr absl::Duration kDeadline = absl::Seconds(3);
constexpr absl::Duration kLongestDeadline = absl::Seconds(12);

class EveryPointTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto stack = LocalStack::Start(
        {.model = kModel,
         .worker_flags = {"--prefill_chunk_tokens=128", "--transports=" + GetParam()},
         // Little of a prompt is on its way at once: prefill still has the rest while decode takes
         // nothing. A hand-off that is sent whole, commit and all, outlives prefill.
         .prefill_flags = {"--max_running_sequences=1", "--kv_segment_kib=64"},
         .decode_flags = {"--lease=4s"},
         .router_flags = {"--endpoint_wait=1s"}});
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
  }

  // Brings a request to `point`, calls `strike`, lets the held worker go on and returns what the
  // client got.
  StreamResult Strike(Point point, const std::function<void(RequestAtPoint&)>& strike) {
    RequestAtPoint request(stack_.get(), point);
    const absl::Status reached = request.Reach();
    EXPECT_TRUE(reached.ok()) << reached << stack_->LogTails();
    strike(request);
    request.LetGo();
    return request.Result();
  }

  // A request that is held at `point` and has a deadline.
  std::unique_ptr<RequestAtPoint> HoldUntilDeadline(Point point) {
    for (absl::Duration deadline = kDeadline;; deadline *= 2) {
      auto request = std::make_unique<RequestAtPoint>(stack_.get(), point);
      const absl::Status reached = request->Reach(deadline);
      if (reached.ok() || deadline >= kLongestDeadline) {
        EXPECT_TRUE(reached.ok()) << reached << stack_->LogTails();
        return request;
      }
      request.reset();
      ExpectIdle(stack_->decode());
      ExpectIdle(stack_->prefill());
    }
  }

  // Stops `worker` at `point` until the client's time is up or the request has ended otherwise, and
  // returns how.
  absl::Status Freeze(Service& worker, Point point) {
    const auto request = HoldUntilDeadline(point);
    worker.process->Signal(SIGSTOP);
    request->LetGo();
    worker.process->Signal(SIGSTOP);  // it may be the one that was held
    absl::Status status = rpc::FromGrpcStatus(request->Result().status);
    worker.process->Signal(SIGCONT);
    return status;
  }

  void ExpectIdle(const Service& worker) {
    const absl::Status idle = WaitIdle(worker, kLease);
    EXPECT_TRUE(idle.ok()) << idle << stack_->LogTails();
  }

  void ExpectServes() {
    ASSERT_TRUE(stack_->WaitReady(absl::Seconds(10)).ok()) << stack_->LogTails();
    const StreamResult result = InferenceClient(stack_->router_address()).Run(TokenRequest(64, 8));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack_->LogTails();
    EXPECT_EQ(result.token_ids.size(), 8u);
    EXPECT_TRUE(result.usage_seen);
    const auto samples = ScrapeMetrics(stack_->prefill().metrics_port);
    ASSERT_TRUE(samples.ok()) << samples.status();
    EXPECT_GT(Sample(*samples, "baton_kv_wire_bytes_total", "transport=\"" + GetParam()), 0);
  }

  // UNAVAILABLE before the first token, ABORTED with the count delivered afterwards.
  static void ExpectLost(const StreamResult& result, Point point) {
    const bool begun = point == Point::kTransfer || point == Point::kDecode;
    EXPECT_EQ(result.status.error_code(),
              begun ? grpc::StatusCode::ABORTED : grpc::StatusCode::UNAVAILABLE)
        << result.status.error_message();
    if (begun) {
      const absl::Status status = rpc::FromGrpcStatus(result.status);
      EXPECT_EQ(rpc::ReasonMetadata(status)["tokens_delivered"],
                std::to_string(result.token_ids.size()));
    }
    EXPECT_FALSE(result.usage_seen);
  }

  std::unique_ptr<LocalStack> stack_;
};

// Catalogue T1: decode's pages return whenever prefill dies.
TEST_P(EveryPointTest, PrefillKilledEndsTheRequestUntilTheHandOffAndIsUnnoticedAfterwards) {
  for (const Point point : kPoints) {
    SCOPED_TRACE(PointName(point));
    const StreamResult result =
        Strike(point, [&](RequestAtPoint&) { stack_->prefill().process->Signal(SIGKILL); });
    if (point == Point::kDecode) {
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.token_ids.size(), size_t{RequestAtPoint::kMaxTokens});
    } else {
      ExpectLost(result, point);
    }
    ExpectIdle(stack_->decode());
    ASSERT_TRUE(stack_->Restart(stack_->prefill()).ok());
    ExpectServes();
  }
}

// Catalogue T9: prefill's pages return whenever decode dies, also before it has taken a byte.
TEST_P(EveryPointTest, DecodeKilledIsUnavailableUntilTheFirstTokenAndAbortedAfterwards) {
  for (const Point point : kPoints) {
    SCOPED_TRACE(PointName(point));
    const StreamResult result =
        Strike(point, [&](RequestAtPoint&) { stack_->decode().process->Signal(SIGKILL); });
    ExpectLost(result, point);
    ExpectIdle(stack_->prefill());
    ASSERT_TRUE(stack_->Restart(stack_->decode()).ok());
    ExpectServes();
  }
}

TEST_P(EveryPointTest, FrozenWorkersReturnEveryPageWhenTheyGoOn) {
  for (Service* const worker : {&stack_->prefill(), &stack_->decode()}) {
    for (const Point point : kPoints) {
      SCOPED_TRACE(std::string(worker == &stack_->decode() ? "decode, " : "prefill, ") +
                   std::string(PointName(point)));
      const absl::Status status = Freeze(*worker, point);
      EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) ||
                  absl::IsAborted(status))
          << status;
      ExpectIdle(stack_->decode());
      ExpectIdle(stack_->prefill());
      ExpectServes();
    }
  }
}

TEST_P(EveryPointTest, RouterKilledIsUnavailableAndBothWorkersServeARestartedOne) {
  for (const Point point : kPoints) {
    SCOPED_TRACE(PointName(point));
    const StreamResult result =
        Strike(point, [&](RequestAtPoint&) { stack_->router().process->Signal(SIGKILL); });
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << result.status.error_message();
    ExpectIdle(stack_->decode());
    ExpectIdle(stack_->prefill());
    ASSERT_TRUE(stack_->Restart(stack_->router()).ok());
    ExpectServes();
  }
}

// Catalogue T6 and T8: a client that leaves between prefill's end and decode's begin (the point
// "transfer") leaves nothing behind either.
TEST_P(EveryPointTest, CancelledReturnsThePagesOfBothWorkers) {
  for (const Point point : kPoints) {
    SCOPED_TRACE(PointName(point));
    const StreamResult result = Strike(point, [](RequestAtPoint& request) { request.Cancel(); });
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::CANCELLED)
        << result.status.error_message();
    ExpectIdle(stack_->decode());
    ExpectIdle(stack_->prefill());
    ExpectServes();
  }
}

TEST_P(EveryPointTest, DeadlineIsNamedWithItsPhaseAndReturnsThePagesOfBothWorkers) {
  constexpr std::array<std::string_view, kPoints.size()> kPhases = {
      "queue", "prefill", "prefill", "transfer", "decode"};
  for (size_t i = 0; i < kPoints.size(); ++i) {
    SCOPED_TRACE(PointName(kPoints[i]));
    const auto request = HoldUntilDeadline(kPoints[i]);
    const absl::Status status = rpc::FromGrpcStatus(request->Result().status);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(rpc::ReasonMetadata(status)["phase"], kPhases[i]) << status;
    EXPECT_FALSE(request->Result().usage_seen);
    request->LetGo();
    ExpectIdle(stack_->decode());
    ExpectIdle(stack_->prefill());
    ExpectServes();
  }
}

INSTANTIATE_TEST_SUITE_P(Over, EveryPointTest, ::testing::ValuesIn(Transports()), TransportName);

}  // namespace
}  // namespace baton::testing
