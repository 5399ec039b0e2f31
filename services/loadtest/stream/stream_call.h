// One streamed request.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/loadtest/stream/live_counters.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/timer_queue.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

// What a call needs of its surroundings; all borrowed, they outlive every call.
struct CallContext {
  const RunClock* clock = nullptr;
  TimerQueue* timers = nullptr;
  LiveCounters* counters = nullptr;
};

// What is done on purpose to a call.
struct CallFaults {
  std::optional<absl::Duration> cancel_after = std::nullopt;  // it was sent
  absl::Duration read_delay = {};                             // before every message
};

// Sends a request and writes down what comes and when. gRPC's callbacks, one at a time, fill the
// record; it belongs to `done` once that is called. Owned by itself and by timers until then.
class StreamCall final : public grpc::ClientReadReactor<inference::v1::GenerateStreamResponse>,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  // Gets the finished record and, if it was asked for, the answer; on a thread of gRPC, which it
  // must not block.
  using Done = std::function<void(StreamCall*, RequestRecord, Answer)>;

  StreamCall(const CallContext& context,
             inference::v1::GenerateRequest request,
             RequestRecord record,
             CallFaults faults,
             bool keep_answer,
             Done done);

  // Begins; record.sent is set here. Call once.
  void Start(inference::v1::Inference::Stub* stub);
  // Ends the stream early. Thread-safe.
  void Cancel() { grpc_context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void ScheduleFaults();
  void ReadNext();
  uint32_t SinceSent() const;  // in microseconds
  void Take(const inference::v1::GenerateStreamResponse& message);
  void TakeDelta(const inference::v1::Delta& delta);
  void SetOutcome(const grpc::Status& status);

  const CallContext context_;
  const inference::v1::GenerateRequest request_;
  const CallFaults faults_;
  const bool keep_answer_;
  const Done done_;
  RequestRecord record_;
  Answer answer_;
  bool accounted_ = false;  // usage came
  grpc::ClientContext grpc_context_;
  inference::v1::GenerateStreamResponse message_;
  std::shared_ptr<StreamCall> self_;  // until OnDone
};

}  // namespace baton::loadtest
