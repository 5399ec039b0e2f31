// The plain HTTP side of a service: a few pages for people and scrapers, never requests.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::http {

// What GET answers at one path.
struct Page {
  std::string path;  // "/status.json"
  std::string content_type;
  // Makes the text. Called on a connection's thread, several at a time, so it is thread-safe.
  std::function<std::string()> text;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct PageServerOptions {
  std::string listen;  // host:port; port 0 takes a free one
  std::vector<Page> pages;
  // Connections served at a time. Further ones wait in the system's queue, which is short.
  size_t max_connections = 8;
  // From accepting a connection until its answer is written. It bounds what slow peers hold.
  absl::Duration connection_timeout = absl::Seconds(5);
};

// Serves `pages` from threads of its own, one GET or HEAD a connection, until it is destroyed. It
// takes no bodies, keeps no connections open, and knows no other path. Thread-safe.
class PageServer {
 public:
  // kInvalidArgument: `listen` is no address. kUnavailable: it can't listen there.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(PageServerOptions options);
  // Ends open connections; no page is being made when it returns.
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  // The port in use.
  int port() const { return port_; }

 private:
  class Listener;

  PageServer(std::unique_ptr<Listener> listener, int port);

  const std::unique_ptr<Listener> listener_;
  const int port_;
};

}  // namespace baton::http
