// A router that computes nothing: it streams made-up tokens at a given pace, for load tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"

#include "proto/baton/inference/v1/inference.grpc.pb.h"

namespace baton::testing {

struct MockRouterOptions {
  absl::Duration first_token = {};     // after the request came
  absl::Duration token_interval = {};  // between tokens; zero: as fast as they are taken
};

// Serves GetModelInfo and GenerateStream on a loopback port. Every answer has max_tokens tokens,
// one per message, of text "x". A request whose kv_policy is `refuse` gets RESOURCE_EXHAUSTED
// (QUEUE_FULL), one with `incomplete` a stream without accounting that ends well. Thread-safe.
class MockRouter {
 public:
  explicit MockRouter(const MockRouterOptions& options);
  ~MockRouter();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  // The requests that came, in order.
  std::vector<inference::v1::GenerateRequest> requests() const;

 private:
  class Service;

  std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton::testing
