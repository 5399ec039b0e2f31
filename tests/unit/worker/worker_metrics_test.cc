// What a worker's gauges say of its engine's load, and the stages of its requests.
#include "common/worker/worker_metrics.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/metrics/registry.h"
#include "tests/unit/handoff/fake_engine.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LoadedEngine final : public handoff::FakeEngine {
 public:
  engine::EngineLoad load() const override { return now; }
  engine::EngineLoad now;
};

class WorkerMetricsTest : public testing::Test {
 protected:
  ~WorkerMetricsTest() override { registry_->ClearGauges(); }
  std::string Text() const { return registry_->Text(); }
  static std::string Line(const std::string& name, const std::string& labels, int value) {
    return name + "{model_name=\"m\",role=\"prefill\"" + labels + "} " + std::to_string(value) +
           "\n";
  }

  std::shared_ptr<metrics::Registry> registry_ = std::make_shared<metrics::Registry>(
      metrics::RegistryOptions{.model_name = "m", .role = "prefill"});
  WorkerMetrics metrics_{registry_, "prefill"};
};

TEST_F(WorkerMetricsTest, AdmittedPromptsThatNoStepHasBegunAreWaiting) {
  LoadedEngine engine;
  engine.now.waiting_requests = 2;
  engine.now.running_sequences = 7;
  engine.now.unstarted_requests = 3;
  engine.now.unstarted_sequences = 4;
  metrics_.WatchEngine(&engine, "1");
  EXPECT_THAT(Text(), HasSubstr(Line("baton_requests_waiting", "", 5)));
  EXPECT_THAT(Text(), HasSubstr(Line("baton_requests_running", "", 3)));
  registry_->ClearGauges();
}

TEST_F(WorkerMetricsTest, OrphanedBytesAndTheStartOfTheProcessAreGauges) {
  LoadedEngine engine;
  engine.now.orphaned_bytes = 4096;
  metrics_.WatchEngine(&engine, "1");
  EXPECT_THAT(Text(), HasSubstr(Line("baton_kv_orphaned_bytes", "", 4096)));
  EXPECT_THAT(Text(), HasSubstr("process_start_time_seconds{"));
  registry_->ClearGauges();
}

TEST_F(WorkerMetricsTest, StepsBeforeTheEngineIsWatchedAreNotCounted) {
  const LoadedEngine engine;
  metrics_.OnStep(2048, 0, absl::Seconds(2));
  metrics_.WatchEngine(&engine, "1");
  metrics_.OnStep(100, 3, absl::Milliseconds(20));
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr(Line("baton_step_duration_seconds_count", "", 1)));
  const auto tokens = [](const std::string& phase, const std::string& count) {
    return "baton_step_tokens_total{model_name=\"m\",phase=\"" + phase + "\",role=\"prefill\"} " +
           count + "\n";
  };
  EXPECT_THAT(text, HasSubstr(tokens("prefill", "100")));
  EXPECT_THAT(text, HasSubstr(tokens("decode", "3")));
  registry_->ClearGauges();
}

TEST_F(WorkerMetricsTest, StagesThatDidNotRunAreNotObserved) {
  engine::RequestStats stats;
  stats.prefill_time = absl::Seconds(1);
  stats.compress_time = absl::Milliseconds(10);
  metrics_.RecordRequest(absl::OkStatus(), stats);
  const std::string text = Text();
  for (const char* stage : {"prefill_forward", "compress"}) {
    EXPECT_THAT(text,
                HasSubstr("baton_stage_duration_seconds_count{model_name=\"m\",role=\"prefill\","
                          "stage=\"" +
                          std::string(stage) + "\"} 1\n"));
  }
  for (const char* stage : {"prefill_queue", "transfer", "decompress", "decode_queue"}) {
    EXPECT_THAT(text, Not(HasSubstr("stage=\"" + std::string(stage))));
  }
}

}  // namespace
}  // namespace baton::worker
