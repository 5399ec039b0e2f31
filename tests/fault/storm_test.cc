// Many clients that cancel, read slowly or run out of time.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";
constexpr absl::Duration kLease = absl::Seconds(4);

std::unique_ptr<LocalStack> StartStack(std::vector<std::string> router_flags = {}) {
  auto stack = LocalStack::Start(
      {.model = kModel, .decode_flags = {"--lease=4s"}, .router_flags = std::move(router_flags)});
  EXPECT_TRUE(stack.ok()) << stack.status();
  return stack.ok() ? *std::move(stack) : nullptr;
}

// Resident memory of a process in MiB.
double ResidentMib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) {
      return std::atof(line.c_str() + 6) / 1024;
    }
  }
  return 0;
}

// Catalogue T4: the storm.
TEST(StormTest, ThousandRequestsCancelledAtRandomMomentsLeaveNothingBehind) {
  auto stack = StartStack();
  ASSERT_NE(stack, nullptr);
  constexpr unsigned kSeed = 20240917;
  constexpr int kRequests = 1000;
  constexpr int kClients = 32;
  SCOPED_TRACE("seed " + std::to_string(kSeed) + "; repeat: ctest -R StormTest.ThousandRequests");
  std::atomic<int> next = 0;
  std::atomic<int> unexpected = 0;
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      const InferenceClient client(stack->router_address());
      for (int i = next++; i < kRequests; i = next++) {
        std::mt19937 random(kSeed + static_cast<unsigned>(i));
        const auto request = TokenRequest(
            static_cast<int>(16 + random() % 600), static_cast<int>(1 + random() % 60), i);
        const StreamResult result =
            client.Run(request, {.cancel_after = absl::Microseconds(random() % 400000)});
        cancelled += result.status.error_code() == grpc::StatusCode::CANCELLED ? 1 : 0;
        const bool complete = result.status.ok() && result.usage_seen;
        unexpected += complete || result.status.error_code() == grpc::StatusCode::CANCELLED ? 0 : 1;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(unexpected, 0) << stack->LogTails();
  EXPECT_GT(cancelled, kRequests / 4);
  EXPECT_TRUE(WaitIdle(stack->decode(), kLease).ok()) << WaitIdle(stack->decode(), kLease);
  EXPECT_TRUE(WaitIdle(stack->prefill(), kLease).ok()) << WaitIdle(stack->prefill(), kLease);
  const StreamResult after = InferenceClient(stack->router_address()).Run(TokenRequest(64, 8));
  EXPECT_TRUE(after.status.ok()) << after.status.error_message();
}

constexpr int kSlowTokens = 1000;
constexpr int kSlowSequences = 16;

TEST(StormTest, ReaderThatStopsDelaysNoOtherStreamAndBoundsTheRoutersMemory) {
  auto stack = StartStack({"--max_stream_buffer_bytes=65536"});
  ASSERT_NE(stack, nullptr);
  const InferenceClient client(stack->router_address());
  ASSERT_TRUE(client.Run(TokenRequest(64, 8)).status.ok());
  const double before_mib = ResidentMib(stack->router().process->pid());
  std::atomic<bool> stopped = false;
  StreamResult slow;
  // About 8 MB of answers, most of which come while nobody reads.
  inference::v1::GenerateRequest large = TokenRequest(64, kSlowTokens);
  large.mutable_sampling()->set_n(kSlowSequences);
  large.mutable_output()->set_logprobs(20);
  std::thread reader([&] {
    slow =
        client.Run(large, {.timeout = absl::Seconds(150), .keep_going = [&](const StreamResult&) {
                             if (!stopped.exchange(true)) {
                               absl::SleepFor(absl::Seconds(30));
                             }
                             return true;
                           }});
  });
  const absl::Time until = absl::Now() + absl::Seconds(28);
  int served = 0;
  absl::Duration longest;
  double peak_mib = 0;
  while (absl::Now() < until) {
    const absl::Time begin = absl::Now();
    const StreamResult other = InferenceClient(stack->router_address()).Run(TokenRequest(64, 8));
    longest = std::max(longest, absl::Now() - begin);
    EXPECT_TRUE(other.status.ok()) << other.status.error_message();
    ++served;
    peak_mib = std::max(peak_mib, ResidentMib(stack->router().process->pid()));
    absl::SleepFor(absl::Milliseconds(50));
  }
  RecordProperty("served", served);
  RecordProperty("longest_ms", static_cast<int>(absl::ToInt64Milliseconds(longest)));
  RecordProperty("router_mib", static_cast<int>(peak_mib - before_mib));
  EXPECT_GT(served, 20);
  EXPECT_LT(longest, absl::Seconds(5)) << "another stream waited for the one that is not read";
  EXPECT_LT(peak_mib - before_mib, 10) << "MiB more than before";
  reader.join();
  EXPECT_TRUE(slow.status.ok()) << slow.status.error_message();
  EXPECT_EQ(slow.token_ids.size(), size_t{kSlowTokens});
}

}  // namespace
}  // namespace baton::testing
