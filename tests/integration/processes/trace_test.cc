// A trace through router, prefill and decode processes, as their files have it.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

using nlohmann::json;

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kClientSpan[] = "b7ad6b7169203331";

// What opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest has in JSON: the types that
// the encoding gives each field, and no field besides.
bool IsValidSpan(const json& span) {
  static const std::map<std::string, std::regex> kTexts = {
      {"traceId", std::regex("[0-9a-f]{32}")},
      {"spanId", std::regex("[0-9a-f]{16}")},
      {"parentSpanId", std::regex("[0-9a-f]{16}")},
      {"name", std::regex(".+")},
      {"startTimeUnixNano", std::regex("[0-9]+")},
      {"endTimeUnixNano", std::regex("[0-9]+")}};
  for (const auto& [key, value] : span.items()) {
    if (const auto text = kTexts.find(key); text != kTexts.end()) {
      if (!value.is_string() || !std::regex_match(value.get<std::string>(), text->second)) {
        return false;
      }
    } else if (key == "kind" || key == "flags") {
      if (!value.is_number_unsigned()) {
        return false;
      }
    } else if (key == "attributes") {
      for (const json& attribute : value) {
        if (!attribute.at("key").is_string() || attribute.at("value").size() != 1) {
          return false;
        }
      }
    } else if (key != "status") {
      return false;
    }
  }
  return span.contains("traceId") && span.contains("spanId") && span.contains("kind") &&
         std::stoll(span.at("endTimeUnixNano").get<std::string>()) >=
             std::stoll(span.at("startTimeUnixNano").get<std::string>());
}

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const auto flag = [this](const char* service) {
      return std::vector<std::string>{absl::StrCat("--trace_file=", Path(service).string())};
    };
    LocalStackOptions options = {.model = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle"};
    options.prefill_flags = flag("baton-prefill");
    options.decode_flags = flag("baton-decode");
    options.router_flags = flag("baton-router");
    auto stack = LocalStack::Start(options);
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
  }
  void TearDown() override {
    stack_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path Path(const std::string& service) const {
    return folder_ / (service + ".jsonl");
  }

  // One request with this context; empty: none.
  void Ask(const std::string& traceparent) const {
    grpc::ClientContext context;
    if (!traceparent.empty()) {
      context.AddMetadata("traceparent", traceparent);
    }
    const InferenceClient client(stack_->router_address());
    inference::v1::GenerateResponse response;
    const grpc::Status status = client.stub().Generate(&context, TokenRequest(40, 8), &response);
    ASSERT_TRUE(status.ok()) << status.error_message() << stack_->LogTails();
  }

  // The spans of a service's file, valid as OTLP/JSON.
  std::vector<json> Spans(const std::string& service) const {
    std::vector<json> spans;
    std::ifstream file(Path(service));
    for (std::string line; std::getline(file, line) && json::accept(line);) {
      const json request = json::parse(line);
      EXPECT_EQ(request.size(), 1U);
      for (const json& resource : request.at("resourceSpans")) {
        EXPECT_EQ(resource.at("resource").at("attributes").at(0),
                  (json{{"key", "service.name"}, {"value", {{"stringValue", service}}}}));
        for (const json& scope : resource.at("scopeSpans")) {
          for (const json& span : scope.at("spans")) {
            EXPECT_TRUE(IsValidSpan(span)) << span;
            spans.push_back(span);
          }
        }
      }
    }
    return spans;
  }

  // The span of this name, waited for.
  json Find(const std::string& service, const std::string& name) const {
    for (int i = 0; i < 3000; ++i) {
      for (const json& span : Spans(service)) {
        if (span.at("name") == name) {
          return span;
        }
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << service << " wrote no span " << name;
    return json::object();
  }

  std::filesystem::path folder_;
  std::unique_ptr<LocalStack> stack_;
};

TEST_F(TraceTest, SpansOfThreeProcessesHangTogether) {
  Ask(absl::StrCat("00-", kTraceId, "-", kClientSpan, "-01"));
  const json request = Find("baton-router", "baton.inference.v1.Inference/Generate");
  const json prefill = Find("baton-prefill", "baton.worker.v1.Prefill/Prefill");
  const json decode = Find("baton-decode", "baton.worker.v1.Decode/Generate");
  const json transfer = Find("baton-decode", "baton.worker.v1.KvTransfer/Transfer");
  EXPECT_EQ(request.at("parentSpanId"), kClientSpan);
  EXPECT_EQ(prefill.at("parentSpanId"), request.at("spanId"));
  EXPECT_EQ(decode.at("parentSpanId"), request.at("spanId"));
  EXPECT_EQ(transfer.at("parentSpanId"), prefill.at("spanId"));
  for (const char* service : {"baton-router", "baton-prefill", "baton-decode"}) {
    for (const json& span : Spans(service)) {
      EXPECT_EQ(span.at("traceId"), kTraceId);
    }
  }
  for (const char* stage : {"admit", "reserve", "prefill_forward", "decode"}) {
    EXPECT_EQ(Find("baton-router", stage).at("parentSpanId"), request.at("spanId"));
  }
  EXPECT_EQ(Find("baton-prefill", "prefill_forward").at("parentSpanId"), prefill.at("spanId"));
  EXPECT_EQ(Find("baton-decode", "decode").at("parentSpanId"), decode.at("spanId"));
  const auto& attributes = request.at("attributes");
  EXPECT_THAT(attributes,
              ::testing::Contains(
                  json{{"key", "gen_ai.usage.output_tokens"}, {"value", {{"intValue", "8"}}}}));
  EXPECT_THAT(
      attributes,
      ::testing::Contains(json{{"key", "rpc.grpc.status_code"}, {"value", {{"intValue", "0"}}}}));
}

TEST_F(TraceTest, OnlySampledTracesAreWrittenAndMalformedContextsBeginNewOnes) {
  Ask(absl::StrCat("00-", kTraceId, "-", kClientSpan, "-00"));
  Ask(absl::StrCat("00-", kTraceId, "-", kClientSpan, "-zz"));
  const json root = Find("baton-router", "baton.inference.v1.Inference/Generate");
  const json prefill = Find("baton-prefill", "baton.worker.v1.Prefill/Prefill");
  EXPECT_FALSE(root.contains("parentSpanId"));
  EXPECT_NE(root.at("traceId"), kTraceId);
  EXPECT_EQ(prefill.at("traceId"), root.at("traceId"));
  for (const char* service : {"baton-router", "baton-prefill", "baton-decode"}) {
    for (const json& span : Spans(service)) {
      EXPECT_NE(span.at("traceId"), kTraceId);
    }
  }
}

}  // namespace
}  // namespace baton::testing
