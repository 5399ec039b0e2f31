#include "services/router/status/status_pages.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/http/page_server.h"
#include "services/router/router_core.h"
#include "services/router/status/status_page_html.h"
#include "services/router/status/status_report.h"

namespace baton::router {
namespace {

constexpr absl::Duration kReportInterval = absl::Milliseconds(500);

// The newest report. Thread-safe: whoever comes while one is made waits for it.
class NewestReport {
 public:
  explicit NewestReport(const RouterCore& core) : core_(core) {}

  std::string Get() {
    absl::MutexLock lock(&mutex_);
    if (const absl::Time now = absl::Now(); now - made_ >= kReportInterval || now < made_) {
      report_ = StatusReport(core_, started_);
      made_ = now;
    }
    return report_;
  }

 private:
  const RouterCore& core_;
  const absl::Time started_ = absl::Now();
  absl::Mutex mutex_;
  absl::Time made_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string report_ ABSL_GUARDED_BY(mutex_);
};

// Nothing runs or is styled in the page but what carries `nonce`, and it talks to this server only.
std::string SecurityPolicy(const std::string& nonce) {
  return absl::StrCat("default-src 'none'; connect-src 'self'; img-src data:; script-src 'nonce-",
                      nonce,
                      "'; style-src 'nonce-",
                      nonce,
                      "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

}  // namespace

std::vector<http::Page> StatusPages(const RouterCore& core) {
  absl::BitGen random;
  const std::string nonce = absl::StrFormat(
      "%016x%016x", absl::Uniform<uint64_t>(random), absl::Uniform<uint64_t>(random));
  http::Page page = {
      .path = "/",
      .content_type = "text/html; charset=utf-8",
      .text = [html = absl::StrReplaceAll(kStatusPageHtml, {{"NONCE", nonce}})] { return html; },
      .headers = {{"Content-Security-Policy", SecurityPolicy(nonce)},
                  {"Referrer-Policy", "no-referrer"}}};
  http::Page report = {
      .path = "/status.json",
      .content_type = "application/json",
      .text = [newest = std::make_shared<NewestReport>(core)] { return newest->Get(); }};
  return {std::move(page), std::move(report)};
}

}  // namespace baton::router
