// Sends a workload at the times that a schedule wants.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/loadtest/arrivals/arrival_schedule.h"
#include "services/loadtest/stream/live_counters.h"
#include "services/loadtest/stream/request_mix.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/stream_call.h"
#include "services/loadtest/stream/timer_queue.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

struct DriverOptions {
  // Requests that may be open at once; 0: any number, for an open loop only.
  int64_t concurrency = 0;
  // Requests to send; 0: no limit.
  int64_t max_requests = 0;
  // Nothing is sent from then on; what is open goes on.
  absl::Duration duration = absl::InfiniteDuration();
  // Pause between an answer and the next turn of its conversation.
  absl::Duration think_time = {};
  // Time that open requests get after the last one was sent; then they are cancelled.
  absl::Duration drain = absl::Seconds(60);
  // All turns of a conversation carry a session_id, so that the server keeps their KV.
  bool sessions = false;
  // In front of request ids and session ids; different in every run.
  std::string run_id = {};
  std::string model = {};
};

// One run. The caller's thread sends; gRPC's threads receive. All pointers are borrowed.
class Driver {
 public:
  using Stubs = std::vector<std::unique_ptr<inference::v1::Inference::Stub>>;

  // `schedule` null: a closed loop of options.concurrency requests. Calls take turns over `stubs`.
  Driver(const DriverOptions& options,
         const Stubs* stubs,
         const RequestMix* mix,
         Workload* workload,
         ArrivalSchedule* schedule,
         const CallContext& context);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Sends everything and waits until every stream has ended; call once. Records in the order in
  // which their streams ended.
  std::vector<RequestRecord> Run();
  // Sends nothing more and cancels what is open after options.drain; a second call cancels at once.
  // Thread-safe.
  void Stop();
  // Whether Stop was called. Thread-safe.
  bool stopped() const {
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }
  // When the requests were due, in this order, that an open loop should have sent within its
  // duration and its number of requests, and that the concurrency limit held back to the end:
  // arrivals for which the workload has a conversation, and later turns of those that were sent.
  // After Run; empty if that was stopped.
  const std::vector<absl::Duration>& unsent() const { return unsent_; }

 private:
  // A turn to send.
  struct Job {
    absl::Duration due;
    absl::Duration allowed;  // set when it is taken
    std::shared_ptr<Conversation> conversation;
    inference::v1::GenerateRequest request;
    std::string conversation_id;
    int64_t conversation_number = 0;
    int32_t turn = 0;
  };
  using NextTurns = std::multimap<absl::Duration, Job>;  // by due time

  bool closed_loop() const { return schedule_ == nullptr; }
  // Fills fresh_ from workload and schedule, unless they have ended.
  void FetchFresh();
  // Waits for the next turn to send; nothing when there will be none.
  std::optional<Job> NextJob();
  // From when on the load test may send `job`: infinite while no slot is free.
  absl::Duration ReadyAt(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The turn that is ready first: fresh_, one of next_turns_ or nullptr.
  const Job* First() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Job Take(const Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether sending `job` takes a free slot.
  bool UsesSlot(const Job& job) const;
  void Launch(Job job);
  RequestRecord MakeRecord(const Job& job, const RequestTraits& traits) const;
  inference::v1::GenerateRequest MakeRequest(Job& job,
                                             const RequestTraits& traits,
                                             const RequestRecord& record) const;
  // On a thread of gRPC.
  void Ended(StreamCall* call, Job& job, RequestRecord record, const Answer& answer);
  void CountEnd(const RequestRecord& record);
  void CollectUnsent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drain();

  const DriverOptions options_;
  const Stubs& stubs_;
  const RequestMix& mix_;
  Workload& workload_;
  ArrivalSchedule* const schedule_;
  const CallContext context_;
  // Of the sending thread.
  std::optional<Job> fresh_;
  bool exhausted_ = false;
  int64_t sent_ = 0;
  int64_t conversations_ = 0;
  std::vector<absl::Duration> unsent_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_ ABSL_GUARDED_BY(mutex_) = false;
  NextTurns next_turns_ ABSL_GUARDED_BY(mutex_);
  // When the free slots of a limited concurrency became free, the earliest first. A slot is held by
  // a request or, in a closed loop, by a conversation, also while its user thinks.
  std::deque<absl::Duration> slots_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<std::shared_ptr<StreamCall>> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<RequestRecord> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::loadtest
