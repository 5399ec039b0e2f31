// A router in this process with one prefill and one decode worker, and a client.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/router/server.h"
#include "tests/integration/router/fake_cluster.h"

namespace baton::router {

// What a stream gave.
struct StreamOutcome {
  absl::Status status;
  std::vector<inference::v1::GenerateStreamResponse> messages;
  std::vector<uint32_t> token_ids;  // of sequence 0
  inference::v1::Usage usage;
  int finished = 0;
  std::string request_id_header;
};

class RouterFixture : public ::testing::Test {
 protected:
  RouterFixture();
  ~RouterFixture() override;

  // Starts workers that have not been started and a router in front of them.
  void Start(RouterOptions options = {});
  // `decode` list of the router; call before Start to add workers.
  FakeWorker& AddPrefill();
  FakeWorker& AddDecode(worker::v1::Role role = worker::v1::ROLE_DECODE);

  static inference::v1::GenerateRequest Request(uint32_t max_tokens = 4);
  StreamOutcome Stream(const inference::v1::GenerateRequest& request,
                       absl::Duration timeout = absl::Seconds(30));
  bool ready() const;
  // Neither worker has a call open.
  bool WorkersIdle() const;

  Handoffs handoffs_;
  std::vector<std::unique_ptr<FakeWorker>> prefills_;
  std::vector<std::unique_ptr<FakeWorker>> decodes_;
  std::unique_ptr<RouterServer> router_;
  std::unique_ptr<inference::v1::Inference::Stub> stub_;
};

}  // namespace baton::router
