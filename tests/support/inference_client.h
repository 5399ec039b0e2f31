// A small client of the public API for tests: runs streams on threads and remembers what came.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

#include "proto/baton/inference/v1/inference.grpc.pb.h"

namespace baton::testing {

// Everything one GenerateStream call produced.
struct StreamResult {
  grpc::Status status;
  bool started = false;
  bool usage_seen = false;
  int finished = 0;
  std::string text;
  std::vector<uint32_t> token_ids;  // of sequence 0
  inference::v1::Usage usage;
};

struct StreamOptions {
  absl::Duration timeout = absl::Seconds(60);
  // Called after every message with the number of tokens so far; false cancels the call.
  std::function<bool(const StreamResult&)> keep_going = {};
  // Cancels the call this long after it began, from another thread.
  absl::Duration cancel_after = absl::InfiniteDuration();
  // Cancels the call when notified, from another thread.
  const absl::Notification* cancel = nullptr;
};

// Thread-safe; a client may run many streams at once.
class InferenceClient {
 public:
  explicit InferenceClient(
      const std::string& router_address,
      const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr);  // null: none

  // Blocks until the stream has ended.
  StreamResult Run(const inference::v1::GenerateRequest& request,
                   const StreamOptions& options = {}) const;
  inference::v1::Inference::Stub& stub() const { return *stub_; }

 private:
  std::unique_ptr<inference::v1::Inference::Stub> stub_;
};

// A greedy request: `prompt_tokens` ids of ordinary text, exactly `max_tokens` tokens (ignore_eos).
// Different `variant`s give different prompts.
inference::v1::GenerateRequest TokenRequest(int prompt_tokens, int max_tokens, int variant = 0);

}  // namespace baton::testing
