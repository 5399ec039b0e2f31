// What the lab's eval needs of engines: a prompt in, a greedy answer and its accounting out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/engine/request.h"
#include "common/worker/worker_options.h"

namespace baton::lab {

struct GeneratedAnswer {
  std::vector<int32_t> token_ids;  // the stop token left out
  engine::RequestStats stats;      // of the whole way, hand-off included
  absl::Duration time_to_first_token;
  absl::Duration total_time;
};

// One request at a time; not thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;
  // Blocks until the answer is complete.
  virtual absl::StatusOr<GeneratedAnswer> Generate(engine::GenerateRequest request) = 0;
};

// Prefill and decode in one engine.
absl::StatusOr<std::unique_ptr<Generator>> MakeLocalGenerator(worker::WorkerOptions options);

// A prefill and a decode engine joined by the loopback transport; both use `options.threads`
// threads, one after the other.
absl::StatusOr<std::unique_ptr<Generator>> MakeSplitGenerator(worker::WorkerOptions options);

}  // namespace baton::lab
