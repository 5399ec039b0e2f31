// Serves /metrics over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/metrics/registry.h"

namespace prometheus {
class Exposer;
}

namespace baton::metrics {

// Serves `registry` at /metrics from its own threads until it is destroyed.
class Exposer {
 public:
  // `listen` is host:port; port 0 takes a free one. kUnavailable when it can't listen there.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const std::string& listen,
                                                        std::shared_ptr<Registry> registry);
  ~Exposer();
  Exposer(const Exposer&) = delete;
  Exposer& operator=(const Exposer&) = delete;

  // The port in use.
  int port() const { return port_; }

 private:
  Exposer(std::unique_ptr<prometheus::Exposer> exposer, std::shared_ptr<Registry> registry);

  std::shared_ptr<Registry> registry_;  // shared: the HTTP threads hold it during a scrape
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace baton::metrics
