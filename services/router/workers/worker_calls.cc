#include "services/router/workers/worker_calls.h"

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"

namespace baton::router {
namespace {

constexpr absl::Duration kCancelTimeout = absl::Seconds(10);

}  // namespace

bool WorkerCalls::Begin(grpc::ClientContext* context) {
  absl::MutexLock lock(&mutex_);
  if (!stopped_) {
    unary_.insert(context);
  }
  return !stopped_;
}

void WorkerCalls::End(grpc::ClientContext* context) {
  absl::MutexLock lock(&mutex_);
  unary_.erase(context);
}

bool WorkerCalls::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (live_.WaitForNone(grace)) {
    return true;
  }
  {
    absl::MutexLock lock(&mutex_);
    for (grpc::ClientContext* context : unary_) {
      context->TryCancel();
    }
  }
  return live_.WaitForNone(kCancelTimeout);
}

}  // namespace baton::router
