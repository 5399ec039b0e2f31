#include "common/trace/call_span.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/trace/span_file.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

constexpr char kSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr char kNotSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

class CallSpanTest : public ::testing::Test {
 protected:
  CallSpanTest()
      : path_(testing::TempDir() + "call_span_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove(path_);
    file_ = *SpanFile::Open({.path = path_});
  }
  ~CallSpanTest() override { std::filesystem::remove(path_); }

  // The spans that were written; closes the file.
  nlohmann::json Written() {
    file_.reset();
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line.empty() ? nlohmann::json::array()
                        : nlohmann::json::parse(line)["resourceSpans"][0]["scopeSpans"][0]["spans"];
  }
  static void End(CallSpan& span, const absl::Status& status = absl::OkStatus()) {
    span.End(
        "a.b.Service/Method", absl::UnixEpoch(), absl::UnixEpoch() + absl::Seconds(3), status, {});
  }

  const std::string path_;
  std::unique_ptr<SpanFile> file_;
};

TEST_F(CallSpanTest, ContinuesTheCallersTraceAndPassesItsOwnIdOn) {
  CallSpan span(file_.get(), kSampled, /*may_begin=*/false);
  EXPECT_TRUE(span.recording());
  const auto passed_on = ParseTraceparent(span.traceparent());
  ASSERT_TRUE(passed_on.has_value());
  EXPECT_TRUE(passed_on->sampled);
  span.AddStages(
      absl::UnixEpoch(),
      {{"one", absl::Seconds(1)}, {"none", absl::ZeroDuration()}, {"two", absl::Seconds(2)}});
  End(span);
  End(span);  // again does nothing
  const auto spans = Written();
  ASSERT_EQ(spans.size(), 3U);
  for (const auto& written : spans) {
    EXPECT_EQ(written["traceId"], "0af7651916cd43dd8448eb211c80319c");
  }
  EXPECT_EQ(spans[0]["name"], "one");
  EXPECT_EQ(spans[1]["startTimeUnixNano"], "1000000000");
  EXPECT_EQ(spans[1]["parentSpanId"], ToHex(passed_on->span_id));
  EXPECT_EQ(spans[2]["spanId"], ToHex(passed_on->span_id));
  EXPECT_EQ(spans[2]["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(spans[2]["name"], "a.b.Service/Method");
}

TEST_F(CallSpanTest, TraceThatIsNotSampledIsPassedOnAndNotRecorded) {
  CallSpan span(file_.get(), kNotSampled, /*may_begin=*/true);
  EXPECT_FALSE(span.recording());
  EXPECT_EQ(span.traceparent(), kNotSampled);
  End(span);
  EXPECT_TRUE(Written().empty());
}

TEST_F(CallSpanTest, WithoutAFileTheContextIsPassedOnAsItCame) {
  const CallSpan span(nullptr, kSampled, /*may_begin=*/true);
  EXPECT_FALSE(span.recording());
  EXPECT_EQ(span.traceparent(), kSampled);
  EXPECT_EQ(CallSpan(nullptr, "", true).traceparent(), "");
}

TEST_F(CallSpanTest, TracesBeginWhereTheyMayAndAtTheirShare) {
  EXPECT_FALSE(CallSpan(file_.get(), "", /*may_begin=*/false).recording());
  EXPECT_FALSE(CallSpan(file_.get(), "nonsense", /*may_begin=*/false).recording());
  CallSpan root(file_.get(), "nonsense", /*may_begin=*/true);
  EXPECT_TRUE(root.recording());
  End(root);
  EXPECT_FALSE(Written()[0].contains("parentSpanId"));
  const auto none = SpanFile::Open({.path = path_, .new_trace_share = 0.0});
  EXPECT_FALSE(CallSpan(none->get(), "", /*may_begin=*/true).recording());
  EXPECT_TRUE(CallSpan(none->get(), kSampled, /*may_begin=*/true).recording());
}

TEST_F(CallSpanTest, OnlyErrorsOfTheServerAreErrorsOfItsSpan) {
  CallSpan ours(file_.get(), kSampled, /*may_begin=*/false);
  CallSpan theirs = ours;
  End(ours, absl::InternalError(std::string(1000, 'x')));
  End(theirs, absl::InvalidArgumentError("bad prompt"));
  const auto spans = Written();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0]["status"]["code"], 2);
  EXPECT_EQ(spans[0]["status"]["message"].get<std::string>().size(), 256U);
  EXPECT_TRUE(spans[1]["status"].empty());
  EXPECT_EQ(spans[1]["attributes"][3]["value"]["intValue"], "3");
}

}  // namespace
}  // namespace baton::trace
