// Processes are killed at chosen moments: clients see the right status, survivors return to their
// baseline within the lease and keep serving.
#include <csignal>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";
constexpr absl::Duration kLease = absl::Seconds(4);
// A prompt whose prefill takes seconds on one core, so that a kill falls into it.
constexpr int kLongPrompt = 12000;

std::unique_ptr<LocalStack> StartStack(int prefill_workers = 1, int decode_workers = 1) {
  auto stack = LocalStack::Start({.model = kModel,
                                  .prefill_workers = prefill_workers,
                                  .decode_workers = decode_workers,
                                  .decode_flags = {"--lease=4s"}});
  EXPECT_TRUE(stack.ok()) << stack.status();
  return stack.ok() ? *std::move(stack) : nullptr;
}

void ExpectServes(const LocalStack& stack) {
  const StreamResult result = InferenceClient(stack.router_address()).Run(TokenRequest(64, 8));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack.LogTails();
  EXPECT_EQ(result.token_ids.size(), 8u);
  EXPECT_TRUE(result.usage_seen);
}

// Runs `request` on a thread and calls `act` after `delay`.
StreamResult RunAndAct(const LocalStack& stack,
                       const inference::v1::GenerateRequest& request,
                       absl::Duration delay,
                       const std::function<void()>& act) {
  StreamResult result;
  std::thread caller([&] { result = InferenceClient(stack.router_address()).Run(request); });
  absl::SleepFor(delay);
  act();
  caller.join();
  return result;
}

TEST(KillTest, PrefillKilledDuringPrefillIsUnavailableAndDecodeReturnsEveryPage) {
  auto stack = StartStack();
  ASSERT_NE(stack, nullptr);
  const StreamResult result =
      RunAndAct(*stack, TokenRequest(kLongPrompt, 16), absl::Milliseconds(700), [&] {
        stack->prefill().process->Signal(SIGKILL);
      });
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << result.status.error_message();
  EXPECT_FALSE(result.usage_seen);
  EXPECT_TRUE(WaitIdle(stack->decode(), kLease).ok()) << WaitIdle(stack->decode(), kLease);
  ASSERT_TRUE(stack->Restart(stack->prefill()).ok());
  ASSERT_TRUE(stack->WaitReady(absl::Seconds(10)).ok());
  ExpectServes(*stack);
}

TEST(KillTest, AnotherPrefillTakesOverTheReservation) {
  auto stack = StartStack(/*prefill_workers=*/2);
  ASSERT_NE(stack, nullptr);
  const auto request = TokenRequest(kLongPrompt, 16);
  const StreamResult undisturbed = InferenceClient(stack->router_address()).Run(request);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  const StreamResult result = RunAndAct(*stack, request, absl::Milliseconds(700), [&] {
    // The one with work is the one that was chosen.
    const auto samples = ScrapeMetrics(stack->prefill(0).metrics_port);
    const bool first = samples.ok() && (Sample(*samples, "baton_requests_running") > 0 ||
                                        Sample(*samples, "baton_requests_waiting") > 0);
    stack->prefill(first ? 0 : 1).process->Signal(SIGKILL);
  });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
  EXPECT_EQ(result.token_ids, undisturbed.token_ids);
  EXPECT_EQ(result.usage.retries(), 1u);
  EXPECT_TRUE(WaitIdle(stack->decode(), kLease).ok());
}

TEST(KillTest, DecodeKilledDuringDecodeEndsTheStreamAbortedWithItsCount) {
  auto stack = StartStack();
  ASSERT_NE(stack, nullptr);
  bool killed = false;
  const StreamOptions options = {.keep_going = [&](const StreamResult& so_far) {
    if (!killed && so_far.token_ids.size() >= 5) {
      killed = true;
      stack->decode().process->Signal(SIGKILL);
    }
    return true;
  }};
  const StreamResult result =
      InferenceClient(stack->router_address()).Run(TokenRequest(200, 2000), options);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::ABORTED) << result.status.error_message();
  EXPECT_FALSE(result.usage_seen);
  EXPECT_GE(result.token_ids.size(), 5u);
  EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok()) << WaitIdle(stack->prefill(), kLease);
  ASSERT_TRUE(stack->Restart(stack->decode()).ok());
  ASSERT_TRUE(stack->WaitReady(absl::Seconds(10)).ok());
  ExpectServes(*stack);
}

TEST(KillTest, DecodeKilledDuringPrefillIsRetriedOnAnotherPair) {
  auto stack = StartStack(/*prefill_workers=*/1, /*decode_workers=*/2);
  ASSERT_NE(stack, nullptr);
  const StreamResult result =
      RunAndAct(*stack, TokenRequest(kLongPrompt, 4), absl::Milliseconds(700), [&] {
        const auto samples = ScrapeMetrics(stack->decode(0).metrics_port);
        const bool first = samples.ok() && Sample(*samples, "baton_kv_leases_active") > 0;
        stack->decode(first ? 0 : 1).process->Signal(SIGKILL);
      });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
  EXPECT_EQ(result.token_ids.size(), 4u);
  EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok());
}

TEST(KillTest, RouterKilledLeavesNoPageBehindAndARestartedOneServes) {
  auto stack = StartStack();
  ASSERT_NE(stack, nullptr);
  const StreamResult result =
      RunAndAct(*stack, TokenRequest(kLongPrompt, 16), absl::Milliseconds(700), [&] {
        stack->router().process->Signal(SIGKILL);
      });
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(WaitIdle(stack->decode(), kLease).ok()) << WaitIdle(stack->decode(), kLease);
  EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok()) << WaitIdle(stack->prefill(), kLease);
  ASSERT_TRUE(stack->Restart(stack->router()).ok());
  ASSERT_TRUE(stack->WaitReady(absl::Seconds(10)).ok());
  ExpectServes(*stack);
}

TEST(KillTest, TerminatedServicesFinishRunningRequests) {
  auto stack = StartStack();
  ASSERT_NE(stack, nullptr);
  const StreamResult result =
      RunAndAct(*stack, TokenRequest(100, 300), absl::Milliseconds(200), [&] {
        stack->router().process->Signal(SIGTERM);
      });
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.token_ids.size(), 300u);
  const absl::StatusOr<int> code = stack->router().process->Wait(absl::Seconds(10));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

}  // namespace
}  // namespace baton::testing
