#include "common/trace/otlp_json.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/trace/span.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

Span Example() {
  Span span;
  span.context = *ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  span.parent = SpanId{1, 2, 3, 4, 5, 6, 7, 8};
  span.parent_is_remote = true;
  span.name = "baton.worker.v1.Prefill/Prefill";
  span.kind = SpanKind::kServer;
  span.start = absl::FromUnixNanos(1'700'000'000'123'456'789);
  span.end = absl::FromUnixNanos(1'700'000'001'000'000'000);
  span.attributes = {{"rpc.system", "grpc"}, {"tokens", int64_t{1} << 60}, {"share", 0.5}};
  return span;
}

// Ids are hexadecimal, numbers of 64 bits are strings, enumerations are numbers, names lowerCamel.
TEST(OtlpJsonTest, BytesAreThoseOfTheEncoding) {
  const std::vector<Span> spans = {Example()};
  EXPECT_EQ(
      ToOtlpJson({{"service.name", "baton-prefill"}}, spans),
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":)"
      R"("baton-prefill"}}]},"scopeSpans":[{"scope":{"name":"baton"},"spans":[{"traceId":)"
      R"("0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331","parentSpanId":)"
      R"("0102030405060708","flags":769,"name":"baton.worker.v1.Prefill/Prefill","kind":2,)"
      R"("startTimeUnixNano":"1700000000123456789","endTimeUnixNano":"1700000001000000000",)"
      R"("attributes":[{"key":"rpc.system","value":{"stringValue":"grpc"}},{"key":"tokens",)"
      R"("value":{"intValue":"1152921504606846976"}},{"key":"share","value":{"doubleValue":0.5}}],)"
      R"("status":{}}]}]}]})");
}

TEST(OtlpJsonTest, RootHasNoParentAndErrorsHaveAMessage) {
  Span span = Example();
  span.parent.reset();
  span.parent_is_remote = false;
  span.error = "lost";
  const std::vector<Span> spans = {span};
  const auto json = nlohmann::json::parse(ToOtlpJson({}, spans));
  const auto& written = json["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_FALSE(written.contains("parentSpanId"));
  EXPECT_EQ(written["flags"], 0x101);
  EXPECT_EQ(written["status"], nlohmann::json({{"code", 2}, {"message", "lost"}}));
}

TEST(OtlpJsonTest, TextFromOutsideStaysOneValidLine) {
  Span span = Example();
  span.attributes = {{"id", std::string("a\n\"b\"\xff\0c", 8)}};
  const std::vector<Span> spans = {span, span};
  const std::string line = ToOtlpJson({}, spans);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(line));
}

}  // namespace
}  // namespace baton::trace
