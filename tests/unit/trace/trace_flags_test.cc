#include "common/trace/trace_flags.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/metrics/registry.h"
#include "common/trace/span.h"
#include "common/trace/span_file.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

std::shared_ptr<metrics::Registry> NewRegistry() {
  return std::make_shared<metrics::Registry>(
      metrics::RegistryOptions{.model_name = "tiny", .role = "router"});
}

std::string Dropped(int spans) {
  return R"(baton_trace_spans_dropped_total{model_name="tiny",role="router"} )" +
         std::to_string(spans) + "\n";
}

bool IsExported(const metrics::Registry& registry, const std::string& sample) {
  return registry.Text().find(sample) != std::string::npos;
}

TEST(OpenSpanFileTest, WithoutPathThereIsNoFileAndTheCounterOfLostSpansIsThere) {
  const auto registry = NewRegistry();
  const auto file = OpenSpanFile({}, "baton-router", "1", "a", registry);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file, nullptr);
  EXPECT_TRUE(IsExported(*registry, Dropped(0))) << registry->Text();
}

TEST(OpenSpanFileTest, LostSpansAreInTheMetrics) {
  const auto registry = NewRegistry();
  const auto file = OpenSpanFile({.path = "/dev/full"}, "baton-router", "1", "a", registry);
  ASSERT_TRUE(file.ok()) << file.status();
  Span span;
  span.context = {.trace_id = NewTraceId(), .span_id = NewSpanId(), .sampled = true};
  (*file)->Add({span, span});
  for (int i = 0; i < 6000 && IsExported(*registry, Dropped(0)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(IsExported(*registry, Dropped(2))) << registry->Text();
}

}  // namespace
}  // namespace baton::trace
