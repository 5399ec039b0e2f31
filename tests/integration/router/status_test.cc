// The status page and its report, as whoever opens them gets them.
#include <httplib.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "services/router/router_options.h"
#include "tests/integration/router/fake_cluster.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StatusTest : public RouterFixture {
 protected:
  void StartWithPage() {
    RouterOptions options;
    options.metrics_listen = "127.0.0.1:0";
    Start(options);
  }
  std::string Get(const std::string& path) const {
    const auto answer = httplib::Client("127.0.0.1", router_->metrics_port()).Get(path);
    return answer && answer->status == 200 ? answer->body : "";
  }
  nlohmann::json Report() const { return nlohmann::json::parse(Get("/status.json")); }
};

TEST_F(StatusTest, ReportAgreesWithWhatWasServed) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  StartWithPage();
  ASSERT_TRUE(Stream(Request(4)).status.ok());
  nlohmann::json report;
  ASSERT_TRUE(WaitUntil([&] {  // a report may be half a second old
    report = Report();
    return report["requests"]["ended_by_code"].contains("OK");
  }));
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["model"], "needle");
  EXPECT_EQ(report["state"], "serving");
  EXPECT_EQ(report["requests"]["ended_by_code"]["OK"], 1);
  EXPECT_EQ(report["tokens"]["prompt"], 2);
  EXPECT_EQ(report["tokens"]["generated"], 4);
  EXPECT_EQ(report["kv_bytes"]["wire"], 1234);
  EXPECT_EQ(report["latency_seconds"]["time_to_first_token"]["count"], 1);
  EXPECT_EQ(report["stage_seconds"]["reserve"]["count"], 1);
  ASSERT_EQ(report["workers"]["listed"].size(), 2U);
  EXPECT_EQ(report["workers"]["ready"], 2);
  EXPECT_EQ(report["workers"]["listed"][0]["kind"], "prefill");
  EXPECT_EQ(report["workers"]["listed"][1]["address"], decode.address());
}

TEST_F(StatusTest, LostWorkerAndItsRouterSaySo) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  StartWithPage();
  decode.Kill();
  EXPECT_TRUE(WaitUntil([&] {
    const nlohmann::json report = Report();
    return report["state"] == "not_ready" &&
           report["workers"]["listed"][1]["state"] == "connecting";
  }));
}

TEST_F(StatusTest, PageIsOneFileThatLoadsNothingAndRunsOnlyItsOwnScript) {
  AddPrefill();
  AddDecode();
  StartWithPage();
  const auto page = httplib::Client("127.0.0.1", router_->metrics_port()).Get("/");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("<title>Baton router</title>"));
  EXPECT_THAT(page->body, Not(HasSubstr("NONCE")));
  for (const char* foreign : {"//cdn", "https://", "src=", "@import", "innerHTML", "eval("}) {
    EXPECT_THAT(page->body, Not(HasSubstr(foreign)));
  }
  const std::string policy = page->get_header_value("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(Get("/metrics"), HasSubstr("baton_requests_total"));
}

}  // namespace
}  // namespace baton::router
