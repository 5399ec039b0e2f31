// Golden test of the exposition: names, help, types, labels, buckets and values of every family.
// After a wanted change: BATON_UPDATE_GOLDENS=1 <build>/tests/unit/metrics/metrics_test
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"

namespace baton::metrics {
namespace {

void SetEverything(Registry& registry) {
  registry.Get(kTimeToFirstToken).Observe(0.3);
  registry.Get(kInterTokenLatency).Observe(0.004);
  registry.Get(kRequestLatency).Observe(2.0);
  registry.Get(kRequestQueueTime).Observe(0.1);
  registry.Get(kStageDuration, {stage::kTransfer}).Observe(0.015);
  registry.Get(kStageDuration, {stage::kPrefillForward}).Observe(0.2);
  registry.Get(kStageDuration, {stage::kDecode}).Observe(1.5);
  registry.Get(kStepDuration).Observe(0.03);
  registry.Get(kStepTokens, {"prefill"}).Increment(512);
  registry.Get(kRequests, {"OK"}).Increment(3);
  registry.Get(kRequests, {"CANCELLED"}).Increment();
  registry.Get(kPromptTokens).Increment(4000);
  registry.Get(kCachedPromptTokens).Increment(100);
  registry.Get(kGenerationTokens).Increment(96);
  registry.Get(kStreamIncomplete, {"client_gone"}).Increment();
  registry.Get(kRequestRetries, {"PREFILL_LOST"}).Increment();
  registry.Get(kResumes, {"reprefill", "resumed"}).Increment();
  registry.Get(kKvWireBytes, {"dense", "grpc"}).Increment(1048576);
  registry.Get(kKvLogicalBytes).Increment(1000000);
  registry.Get(kKvLeasesExpired, {"decode"}).Increment();
  registry.Get(kKvChecksumFailures).Increment();
  registry.Get(kKvRetainedLookups, {"hit"}).Increment();
  registry.Get(kKvRetainedEvictions, {"acknowledged"}).Increment();
  registry.AddGauges([](GaugeWriter& gauges) {
    gauges.Set(kRequestsRunning, 5);
    gauges.Set(kRequestsWaiting, 2);
    gauges.Set(kWaitingTokens, 900);
    gauges.Set(kKvPages, {"free"}, 60);
    gauges.Set(kKvPages, {"reserved"}, 10);
    gauges.Set(kKvPages, {"used"}, 30);
    gauges.Set(kKvReservedPages, 10);
    gauges.Set(kKvOrphanedBytes, 4096);
    gauges.Set(kKvPageTokens, 32);
    gauges.Set(kKvLeasesActive, 1);
    gauges.Set(kKvTransportInfo, {"grpc"}, 1);
    gauges.Set(kKvRetainedBytes, 3 << 20);
    gauges.Set(kKvRetainedEntries, 2);
    gauges.Set(kKvLandingBytes, 8 << 20);
    gauges.Set(kKvLandingSlots, {"granted"}, 2);
    gauges.Set(kKvLandingSlots, {"quarantined"}, 1);
    gauges.Set(kReady, 1);
    gauges.Set(kBuildInfo, {"0.0.0"}, 1);
    gauges.Set(kProcessStartTime, 1.7e9);
    gauges.Set(kWorkers, {"prefill", "ready"}, 2);
    gauges.Set(kWorkers, {"decode", "draining"}, 1);
  });
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ExpositionTest, TextEqualsTheGolden) {
  Registry registry({.model_name = "tiny", .role = "decode", .vllm_aliases = true});
  SetEverything(registry);
  const std::string path =
      std::string(BATON_SOURCE_DIR) + "/tests/unit/metrics/exposition.golden.txt";
  if (std::getenv("BATON_UPDATE_GOLDENS") != nullptr) {
    std::ofstream(path) << registry.Text();
  }
  EXPECT_EQ(registry.Text(), ReadAll(path));
}

TEST(ExpositionTest, AliasesAreOptIn) {
  Registry registry({.model_name = "tiny", .role = "decode"});
  SetEverything(registry);
  EXPECT_EQ(registry.Text().find("vllm:"), std::string::npos);
}

TEST(ExpositionTest, SameLabelsGiveTheSameCounter) {
  Registry registry({.model_name = "tiny", .role = "decode"});
  EXPECT_EQ(&registry.Get(kRequests, {"OK"}), &registry.Get(kRequests, {"OK"}));
  EXPECT_NE(&registry.Get(kRequests, {"OK"}), &registry.Get(kRequests, {"UNKNOWN"}));
}

TEST(ExpositionTest, GaugesAreComputedAtEachScrapeUntilCleared) {
  Registry registry({.model_name = "tiny", .role = "decode"});
  int scrapes = 0;
  registry.AddGauges([&](GaugeWriter& gauges) { gauges.Set(kReady, ++scrapes); });
  EXPECT_NE(registry.Text().find("baton_ready{model_name=\"tiny\",role=\"decode\"} 1\n"),
            std::string::npos);
  EXPECT_NE(registry.Text().find("baton_ready{model_name=\"tiny\",role=\"decode\"} 2\n"),
            std::string::npos);
  registry.ClearGauges();
  EXPECT_EQ(registry.Text().find("baton_ready"), std::string::npos);
  EXPECT_EQ(scrapes, 2);
}

}  // namespace
}  // namespace baton::metrics
