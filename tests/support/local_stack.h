// The three services as real processes on loopback ports, for end-to-end and fault tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "tests/support/child_process.h"

namespace baton::testing {

struct LocalStackOptions {
  std::string model;  // directory
  int prefill_workers = 1;
  int decode_workers = 1;
  std::vector<std::string> tls_flags = {};     // for every service and for clients
  std::vector<std::string> worker_flags = {};  // for every prefill and decode worker
  std::vector<std::string> prefill_flags = {};
  std::vector<std::string> decode_flags = {};
  std::vector<std::string> router_flags = {};
};

// One service process and the ports it listens on.
struct Service {
  std::vector<std::string> argv;
  std::unique_ptr<ChildProcess> process;
  int grpc_port = 0;
  int metrics_port = 0;
  std::string address() const { return "127.0.0.1:" + std::to_string(grpc_port); }
};

// Starts decode, prefill and router processes in a temporary folder, on TestGpus() if there are
// any, and waits until the router is ready. The destructor kills all of them. Not thread-safe.
class LocalStack {
 public:
  static absl::StatusOr<std::unique_ptr<LocalStack>> Start(const LocalStackOptions& options);
  ~LocalStack();

  Service& router() { return router_; }
  Service& prefill(size_t index = 0) { return prefill_.at(index); }
  Service& decode(size_t index = 0) { return decode_.at(index); }
  std::string router_address() const { return router_.address(); }

  // Starts a killed service again with the same flags on the same ports.
  absl::Status Restart(Service& service);
  // Waits until the router's readiness is SERVING.
  absl::Status WaitReady(absl::Duration timeout);
  // Folder for files of the test; holds the services' logs.
  const std::string& folder() const { return folder_; }
  // The logs' last lines, for failure messages.
  std::string LogTails() const;

 private:
  LocalStack() = default;
  absl::Status Launch(Service& service, const std::string& name);

  std::string folder_;
  std::vector<std::string> tls_flags_;
  std::map<const Service*, std::string> names_;
  std::vector<Service> decode_;
  std::vector<Service> prefill_;
  Service router_;
};

// The GPUs on which prefill and decode workers of a LocalStack compute: what BATON_TEST_GPUS=N,N
// says in the environment. Empty: they compute on the host.
std::vector<std::string> TestGpus();

// Path of a product binary of this build, or of the folder BATON_BINARIES of the environment.
std::string BinaryPath(const std::string& name);

// Every sample of a service's /metrics by its full name with labels, e.g. `baton_x{role="decode"}`.
absl::StatusOr<std::map<std::string, double>> ScrapeMetrics(int port);

// Sum of the samples of family `name` whose labels contain `label` (empty: all), -1 without any.
double Sample(const std::map<std::string, double>& samples,
              const std::string& name,
              const std::string& label = "");

// Waits until a worker holds nothing: no running or waiting request, no reservation, every page
// free. The error says what it still holds.
absl::Status WaitIdle(const Service& worker, absl::Duration timeout);

}  // namespace baton::testing
