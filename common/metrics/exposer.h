// Serves /metrics over HTTP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/http/page_server.h"
#include "common/metrics/registry.h"

namespace baton::metrics {

// Serves `registry` at /metrics from its own threads until it is destroyed.
class Exposer {
 public:
  // `listen` is host:port; port 0 takes a free one. `pages` are served beside /metrics.
  // kUnavailable when it can't listen there.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const std::string& listen,
                                                        std::shared_ptr<Registry> registry,
                                                        std::vector<http::Page> pages = {});

  // The port in use.
  int port() const { return server_->port(); }

 private:
  explicit Exposer(std::unique_ptr<http::PageServer> server) : server_(std::move(server)) {}

  const std::unique_ptr<http::PageServer> server_;
};

}  // namespace baton::metrics
