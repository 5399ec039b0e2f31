// Decode is killed at every stage behind the begin of a prefill: the prompt is computed once, and
// the client sees one unbroken stream.
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/fault/request_at_point.h"
#include "tests/fault/transports.h"
#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";

std::unique_ptr<LocalStack> StartStack(const std::string& retain_mib,
                                       int decode_workers = 1,
                                       const std::string& lease = "10m",
                                       const std::string& transport = "grpc") {
  auto stack = LocalStack::Start(
      {.model = kModel,
       .decode_workers = decode_workers,
       .worker_flags = {"--prefill_chunk_tokens=128", "--transports=" + transport},
       .prefill_flags = {"--max_running_sequences=1",
                         "--retain_mib=" + retain_mib,
                         "--retain_lease=" + lease},
       .decode_flags = {"--lease=4s"},
       .router_flags = {"--endpoint_wait=20s"}});
  EXPECT_TRUE(stack.ok()) << stack.status();
  return stack.ok() ? *std::move(stack) : nullptr;
}

double Metric(const Service& service, const std::string& name, const std::string& label = "") {
  const auto samples = ScrapeMetrics(service.metrics_port);
  return samples.ok() ? Sample(*samples, name, label) : -1;
}

double PrefilledTokens(LocalStack& stack) {
  return Metric(stack.prefill(), "baton_step_tokens_total", "phase=\"prefill\"");
}

void ExpectNothingRetained(LocalStack& stack) {
  EXPECT_TRUE(WaitIdle(stack.prefill(), absl::Seconds(5)).ok()) << stack.LogTails();
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (Metric(stack.prefill(), "baton_kv_retained_bytes") != 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(Metric(stack.prefill(), "baton_kv_retained_bytes"), 0);
  EXPECT_EQ(Metric(stack.prefill(), "baton_kv_retained_entries"), 0);
}

class RetentionFaultTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Over,
                         RetentionFaultTest,
                         ::testing::ValuesIn(Transports()),
                         TransportName);

TEST_P(RetentionFaultTest, DecodeKilledAtAnyStageCostsNoSecondPrefill) {
  auto stack = StartStack("256", /*decode_workers=*/1, /*lease=*/"10m", GetParam());
  ASSERT_NE(stack, nullptr);
  StreamResult undisturbed;
  {
    RequestAtPoint request(stack.get(), Point::kPrefill);
    ASSERT_TRUE(request.Reach().ok()) << stack->LogTails();
    request.LetGo();
    undisturbed = request.Result();
    ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  }
  for (const Point point : {Point::kPrefill, Point::kTransfer, Point::kDecode}) {
    SCOPED_TRACE(PointName(point));
    const double prefilled = PrefilledTokens(*stack);
    RequestAtPoint request(stack.get(), point);
    ASSERT_TRUE(request.Reach().ok()) << stack->LogTails();
    stack->decode().process->Signal(SIGKILL);
    ASSERT_TRUE(stack->Restart(stack->decode()).ok());
    request.LetGo();
    const StreamResult& result = request.Result();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
    EXPECT_EQ(result.token_ids, undisturbed.token_ids);
    EXPECT_EQ(result.text, undisturbed.text);
    EXPECT_EQ(PrefilledTokens(*stack) - prefilled, result.usage.prompt_tokens());
    ExpectNothingRetained(*stack);
  }
  const std::string resumed = "outcome=\"resumed\",role=\"router\",source=\"";
  EXPECT_GE(Metric(stack->router(), "baton_resume_total", resumed + "retained_kv\""), 1);
  EXPECT_EQ(Metric(stack->router(), "baton_resume_total", resumed + "reprefill\""), 0);
}

// Retained KV is a cache: another request's took its place, and the prompt is computed again.
TEST(RetentionTest, EvictedKvIsPrefilledAgain) {
  auto stack = StartStack("10", /*decode_workers=*/2);
  ASSERT_NE(stack, nullptr);
  const InferenceClient client(stack->router_address());
  const auto answer = TokenRequest(200, 600);
  const StreamResult undisturbed = client.Run(answer);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  bool struck = false;
  const auto strike = [&](const StreamResult& so_far) {
    if (!struck && so_far.token_ids.size() >= 20) {
      struck = true;
      const bool first = Metric(stack->decode(0), "baton_requests_running") > 0;
      ChildProcess& decode = *stack->decode(first ? 0 : 1).process;
      decode.Signal(SIGSTOP);  // or the answer may end while the other prompt is computed
      EXPECT_TRUE(client.Run(TokenRequest(1500, 1)).status.ok());
      decode.Signal(SIGKILL);
    }
    return true;
  };
  const StreamResult result = client.Run(answer, {.keep_going = strike});
  EXPECT_TRUE(result.status.ok()) << result.status.error_message() << stack->LogTails();
  EXPECT_EQ(result.token_ids, undisturbed.token_ids);
  EXPECT_EQ(result.usage.resumes(), 1u) << "the answer had ended before the kill";
  EXPECT_EQ(Metric(stack->prefill(), "baton_kv_retained_evictions_total", "\"acknowledged\""), 1);
  EXPECT_EQ(Metric(stack->prefill(), "baton_kv_retained_lookups_total", "\"miss\""), 1);
  ExpectNothingRetained(*stack);
}

// The call that tells of the end falls into the time in which the worker stands still.
TEST(RetentionTest, FrozenPrefillForgetsARequestThatEndedMeanwhile) {
  auto stack = StartStack("256");
  ASSERT_NE(stack, nullptr);
  RequestAtPoint request(stack.get(), Point::kDecode);
  ASSERT_TRUE(request.Reach().ok()) << stack->LogTails();
  stack->prefill().process->Signal(SIGSTOP);
  request.LetGo();
  EXPECT_TRUE(request.Result().status.ok()) << request.Result().status.error_message();
  absl::SleepFor(absl::Seconds(7));  // longer than the call's own deadline
  stack->prefill().process->Signal(SIGCONT);
  ExpectNothingRetained(*stack);
}

TEST(RetentionTest, KvOfARouterThatDiedGoesWithItsLease) {
  auto stack = StartStack("256", /*decode_workers=*/1, /*lease=*/"2s");
  ASSERT_NE(stack, nullptr);
  {
    RequestAtPoint request(stack.get(), Point::kDecode);
    ASSERT_TRUE(request.Reach().ok()) << stack->LogTails();
    EXPECT_EQ(Metric(stack->prefill(), "baton_kv_retained_entries"), 1);
    stack->router().process->Signal(SIGKILL);
    request.LetGo();
  }
  ExpectNothingRetained(*stack);
}

}  // namespace
}  // namespace baton::testing
