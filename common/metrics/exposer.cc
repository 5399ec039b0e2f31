#include "common/metrics/exposer.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"

namespace baton::metrics {
namespace {

// One thread serves, one more takes a second scraper meanwhile.
constexpr size_t kHttpThreads = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const std::string& listen,
                                                        std::shared_ptr<Registry> registry) {
  // The HTTP server reports a port it can't bind by an exception; it ends here.
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(listen, kHttpThreads);
    exposer->RegisterCollectable(registry);
    if (exposer->GetListeningPorts().empty()) {
      return absl::UnavailableError(absl::StrCat("metrics: nothing listens on ", listen));
    }
    return std::unique_ptr<Exposer>(new Exposer(std::move(exposer), std::move(registry)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "metrics: can't listen on ", listen, " (", error.what(), "); choose another host:port"));
  }
}

Exposer::Exposer(std::unique_ptr<prometheus::Exposer> exposer, std::shared_ptr<Registry> registry)
    : registry_(std::move(registry)),
      exposer_(std::move(exposer)),
      port_(exposer_->GetListeningPorts().front()) {}

Exposer::~Exposer() = default;

}  // namespace baton::metrics
