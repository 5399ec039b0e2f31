#include "common/metrics/exposer.h"

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/registry.h"
#include "prometheus/summary.h"
#include "prometheus/text_serializer.h"

#include "common/base/status_context.h"
#include "common/http/page_server.h"
#include "common/metrics/registry.h"

namespace baton::metrics {
namespace {

constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Makes the text of a scrape and counts what scrapes cost, under the names of prometheus-cpp's own
// server. Thread-safe.
class Scrapes {
 public:
  explicit Scrapes(std::shared_ptr<Registry> registry)
      : registry_(std::move(registry)),
        bytes_(prometheus::BuildCounter()
                   .Name("exposer_transferred_bytes_total")
                   .Help("Transferred bytes to metrics services")
                   .Register(own_)
                   .Add({})),
        scrapes_(prometheus::BuildCounter()
                     .Name("exposer_scrapes_total")
                     .Help("Number of times metrics were scraped")
                     .Register(own_)
                     .Add({})),
        latencies_(
            prometheus::BuildSummary()
                .Name("exposer_request_latencies")
                .Help("Latencies of serving scrape requests, in microseconds")
                .Register(own_)
                .Add({}, prometheus::Summary::Quantiles{{0.5, 0.05}, {0.9, 0.01}, {0.99, 0.001}})) {
  }

  std::string Text() {
    const absl::Time start = absl::Now();
    std::ostringstream text;
    text << registry_->Text();
    prometheus::TextSerializer().Serialize(text, own_.Collect());
    std::string answer = std::move(text).str();
    bytes_.Increment(static_cast<double>(answer.size()));
    scrapes_.Increment();
    latencies_.Observe(absl::ToDoubleMicroseconds(absl::Now() - start));
    return answer;
  }

 private:
  const std::shared_ptr<Registry> registry_;  // shared: a scrape may outlast the service's own
  prometheus::Registry own_;
  prometheus::Counter& bytes_;
  prometheus::Counter& scrapes_;
  prometheus::Summary& latencies_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const std::string& listen,
                                                        std::shared_ptr<Registry> registry,
                                                        std::vector<http::Page> pages) {
  pages.push_back({.path = "/metrics",
                   .content_type = kContentType,
                   .text = [scrapes = std::make_shared<Scrapes>(std::move(registry))] {
                     return scrapes->Text();
                   }});
  auto server = http::PageServer::Start({.listen = listen, .pages = std::move(pages)});
  if (!server.ok()) {
    return WithContext(server.status(), "metrics");
  }
  return std::unique_ptr<Exposer>(new Exposer(*std::move(server)));
}

}  // namespace baton::metrics
