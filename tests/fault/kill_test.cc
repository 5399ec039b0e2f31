// Workers are killed while others could take over: requests move, survivors return to their
// baseline within the lease and keep serving.
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/fault/transports.h"
#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";
constexpr absl::Duration kLease = absl::Seconds(4);
// A prompt whose prefill takes seconds on one core, so that a kill falls into it.
constexpr int kLongPrompt = 6000;

std::unique_ptr<LocalStack> StartStack(const std::string& transport,
                                       int prefill_workers = 1,
                                       int decode_workers = 1) {
  auto stack = LocalStack::Start({.model = kModel,
                                  .prefill_workers = prefill_workers,
                                  .decode_workers = decode_workers,
                                  .worker_flags = {"--transports=" + transport},
                                  .decode_flags = {"--lease=4s"}});
  EXPECT_TRUE(stack.ok()) << stack.status();
  return stack.ok() ? *std::move(stack) : nullptr;
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

class KillTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Over, KillTest, ::testing::ValuesIn(Transports()), TransportName);

TEST_P(KillTest, AnotherPrefillTakesOverTheReservation) {
  auto stack = StartStack(GetParam(), /*prefill_workers=*/2);
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

TEST_P(KillTest, DecodeKilledDuringPrefillIsRetriedOnAnotherPair) {
  auto stack = StartStack(GetParam(), /*prefill_workers=*/1, /*decode_workers=*/2);
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

// Runs `request` and sends `signal` to its decode worker once the client has 20 tokens.
StreamResult StrikeDecode(LocalStack& stack,
                          const inference::v1::GenerateRequest& request,
                          int signal) {
  bool struck = false;
  const auto strike = [&](const StreamResult& so_far) {
    if (!struck && so_far.token_ids.size() >= 20) {
      struck = true;
      const auto samples = ScrapeMetrics(stack.decode(0).metrics_port);
      const bool first = samples.ok() && Sample(*samples, "baton_requests_running") > 0;
      stack.decode(first ? 0 : 1).process->Signal(signal);
    }
    return true;
  };
  return InferenceClient(stack.router_address()).Run(request, {.keep_going = strike});
}

// Catalogue T22: a worker that stands still keeps its connections; its keepalives are missed.
TEST_P(KillTest, DecodeFrozenInAnAnswerIsContinuedByAnother) {
  auto stack = StartStack(GetParam(), /*prefill_workers=*/1, /*decode_workers=*/2);
  ASSERT_NE(stack, nullptr);
  const auto request = TokenRequest(200, 300);
  const StreamResult undisturbed = InferenceClient(stack->router_address()).Run(request);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  const StreamResult result = StrikeDecode(*stack, request, SIGSTOP);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
  EXPECT_EQ(result.token_ids, undisturbed.token_ids);
  EXPECT_EQ(result.usage.resumes(), 1u);
}

// Catalogue T28: sampled with a seed and penalties, in every format that can be shipped.
TEST_P(KillTest, DecodeKilledInAnAnswerIsContinuedByAnother) {
  constexpr int kTokens = 120;
  for (const char* policy : {"dense", "diffkv", "shadowkv:rank=32,budget=128"}) {
    SCOPED_TRACE(policy);
    auto stack = StartStack(GetParam(), /*prefill_workers=*/1, /*decode_workers=*/2);
    ASSERT_NE(stack, nullptr);
    const InferenceClient client(stack->router_address());
    auto request = TokenRequest(500, kTokens);
    request.set_kv_policy(policy);
    request.mutable_sampling()->set_temperature(0.8f);
    request.mutable_sampling()->set_seed(7);
    request.mutable_sampling()->set_repetition_penalty(1.2f);
    const StreamResult undisturbed = client.Run(request);
    ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
    const StreamResult result = StrikeDecode(*stack, request, SIGKILL);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
    EXPECT_EQ(result.token_ids, undisturbed.token_ids);
    EXPECT_EQ(result.text, undisturbed.text);
    EXPECT_EQ(result.usage.resumes(), 1u) << "the answer had ended before the kill";
    EXPECT_EQ(result.usage.completion_tokens(), static_cast<uint32_t>(kTokens));
    EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok());
    const auto samples = ScrapeMetrics(stack->router().metrics_port);
    ASSERT_TRUE(samples.ok()) << samples.status();
    EXPECT_EQ(Sample(*samples, "baton_resume_total", "outcome=\"resumed\""), 1);
  }
}

// Clients that ask again and again until they are stopped.
class Load {
 public:
  Load(const std::string& router_address, int clients) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, router_address, i] {
        const InferenceClient client(router_address);
        while (!stopping_) {
          Count(client.Run(TokenRequest(200, kTokens, i)));
        }
      });
    }
  }
  ~Load() { Stop(); }

  void Stop() {
    stopping_ = true;
    for (std::thread& thread : std::exchange(threads_, {})) {
      thread.join();
    }
  }
  int served() const { return served_; }
  int unavailable() const { return unavailable_; }
  // Answers that ended neither whole and OK nor UNAVAILABLE.
  int wrong() const { return wrong_; }

 private:
  static constexpr int kTokens = 20;

  void Count(const StreamResult& result) {
    if (result.status.ok() && result.usage_seen && result.token_ids.size() == kTokens) {
      ++served_;
    } else if (result.status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      ++unavailable_;
    } else {
      ++wrong_;
    }
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<int> served_ = 0;
  std::atomic<int> unavailable_ = 0;
  std::atomic<int> wrong_ = 0;
  std::vector<std::thread> threads_;
};

// Whether a request is served within `timeout`.
bool ServesWithin(const std::string& router_address, absl::Duration timeout) {
  const InferenceClient client(router_address);
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    if (client.Run(TokenRequest(64, 4), {.timeout = deadline - absl::Now()}).status.ok()) {
      return true;
    }
  }
  return false;
}

// Catalogue T20: decode lives on, and nobody waits longer than two seconds for the new prefill.
TEST_P(KillTest, PrefillRestartedUnderLoadIsUsedAgainWithinTwoSeconds) {
  auto stack = StartStack(GetParam());
  ASSERT_NE(stack, nullptr);
  Load load(stack->router_address(), /*clients=*/4);
  for (int round = 0; round < 2; ++round) {
    absl::SleepFor(absl::Milliseconds(500));
    stack->prefill().process->Signal(SIGKILL);
    ASSERT_TRUE(stack->Restart(stack->prefill()).ok());
    EXPECT_TRUE(ServesWithin(stack->router_address(), absl::Seconds(2))) << stack->LogTails();
  }
  load.Stop();
  EXPECT_GT(load.served(), 0);
  EXPECT_EQ(load.wrong(), 0) << load.served() << " served, " << load.unavailable() << " unavailable"
                             << stack->LogTails();
  EXPECT_TRUE(stack->decode().process->running());
  EXPECT_TRUE(WaitIdle(stack->decode(), kLease).ok()) << WaitIdle(stack->decode(), kLease);
  EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok()) << WaitIdle(stack->prefill(), kLease);
}

TEST(DrainTest, TerminatedServicesFinishRunningRequests) {
  auto stack = StartStack("grpc");
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
