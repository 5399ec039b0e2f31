// A stack of simulated workers, started with a model that has no weights: it answers, streams,
// hands over, is cancelled, and counts.
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";

// Tokenizer and configuration of the shipped model.
std::string ModelWithoutWeights() {
  const std::string folder = ::testing::TempDir() + "/without-weights";
  std::filesystem::create_directories(folder);
  for (const std::filesystem::directory_entry& file : std::filesystem::directory_iterator(kModel)) {
    if (file.path().extension() == ".json") {
      std::filesystem::copy_file(file.path(),
                                 folder / file.path().filename(),
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  return folder;
}

class SimulateProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stack = LocalStack::Start(
        {.model = ModelWithoutWeights(),
         .worker_flags = {"--simulate=prefill_ms=1,prefill_tps=1000000,decode_ms=1"}});
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
    client_ = std::make_unique<InferenceClient>(stack_->router_address());
  }
  double Counted(Service& service, const std::string& name, const std::string& label = "") {
    const auto samples = ScrapeMetrics(service.metrics_port);
    EXPECT_TRUE(samples.ok()) << samples.status();
    return Sample(*samples, name, label);
  }

  std::unique_ptr<LocalStack> stack_;
  std::unique_ptr<InferenceClient> client_;
};

TEST_F(SimulateProcessTest, ManyStreamsAreWholeAndTheirAccountingIsWhatWasCounted) {
  constexpr int kStreams = 50;
  constexpr int kTokens = 40;
  std::vector<StreamResult> results(kStreams);
  std::vector<std::thread> threads;
  threads.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      results[static_cast<size_t>(i)] = client_->Run(TokenRequest(100 + i, kTokens, i));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  uint64_t wire_bytes = 0;
  for (const StreamResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), size_t{kTokens});
    EXPECT_EQ(result.usage.completion_tokens(), uint32_t{kTokens});
    wire_bytes += result.usage.kv_wire_bytes();
  }
  EXPECT_GT(wire_bytes, 0U);
  EXPECT_EQ(Counted(stack_->router(), "baton_generation_tokens_total"), kStreams * kTokens);
  EXPECT_EQ(Counted(stack_->prefill(), "baton_kv_wire_bytes_total"),
            static_cast<double>(wire_bytes));
  EXPECT_EQ(Counted(stack_->decode(), "baton_stage_duration_seconds_count", "first_decode_step"),
            kStreams);
  EXPECT_EQ(Counted(stack_->router(), "baton_workers", "state=\"ready\""), 2);
}

TEST_F(SimulateProcessTest, CancelledStreamsLeaveNothingBehind) {
  for (int i = 0; i < 10; ++i) {
    const StreamResult result =
        client_->Run(TokenRequest(1000, 20'000, i), {.keep_going = [i](const StreamResult& so_far) {
                       return so_far.token_ids.size() < static_cast<size_t>(i) * 10;
                     }});
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(WaitIdle(stack_->prefill(), absl::Seconds(20)), absl::OkStatus());
  EXPECT_EQ(WaitIdle(stack_->decode(), absl::Seconds(20)), absl::OkStatus());
}

TEST_F(SimulateProcessTest, ASignalDrains) {
  std::thread stream([&] {
    const StreamResult result = client_->Run(TokenRequest(100, 300));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), 300U);
  });
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (Counted(stack_->decode(), "baton_requests_running") < 1 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  stack_->decode().process->Signal(SIGTERM);
  const absl::StatusOr<int> code = stack_->decode().process->Wait(absl::Seconds(30));
  stream.join();
  EXPECT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

}  // namespace
}  // namespace baton::testing
