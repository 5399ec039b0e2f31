// What the router's operations share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"

#include "common/base/live_counter.h"
#include "common/trace/span_file.h"
#include "services/router/admission/admission.h"
#include "services/router/model/served_model.h"
#include "services/router/router_metrics.h"
#include "services/router/running_requests.h"
#include "services/router/session/session.h"
#include "services/router/timer_queue.h"
#include "services/router/work_pool.h"
#include "services/router/workers/conversation_homes.h"
#include "services/router/workers/worker_calls.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {

// Members are thread-safe by themselves. Owned by RouterServer; outlives every call.
struct RouterCore {
  LiveCounter calls;  // Generate and GenerateStream, until gRPC is done with them
  LiveCounter sessions;
  std::unique_ptr<const ServedModel> model;
  uint32_t default_max_tokens = 512;
  std::unique_ptr<trace::SpanFile> spans;  // null: none are written
  std::shared_ptr<TimerQueue> timers;
  std::shared_ptr<WorkerCalls> worker_calls;
  std::shared_ptr<WorkerSet> workers;
  std::shared_ptr<Admission> admission;
  ConversationHomes homes;
  std::unique_ptr<RouterMetrics> metrics;
  std::unique_ptr<WorkPool> prompt_pool;  // parses, renders and tokenizes
  RunningRequests running;
  SessionServices session_services;
  std::atomic<bool> draining{false};
};

}  // namespace baton::router
