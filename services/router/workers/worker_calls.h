// Calls to workers, as far as the router's end has to wait for them.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

#include "common/base/live_counter.h"
#include "common/rpc/request_metadata.h"

namespace baton::router {

// Makes the calls that no request waits for: releases, introductions and renewals of leases outlive
// the request that they are made for. Counts all others. Stop waits for every one: what they log
// with goes away next, and a channel whose last holder is a thread of gRPC's callbacks ends the
// process (that thread waits for itself). Thread-safe.
class WorkerCalls {
 public:
  // Gets what a call ended with, on a thread of gRPC.
  using OnEnd = std::function<void(const grpc::Status&)>;

  WorkerCalls() = default;
  WorkerCalls(const WorkerCalls&) = delete;
  WorkerCalls& operator=(const WorkerCalls&) = delete;

  // Makes a unary call: start(context, request, response, done) hands it to a stub. After Stop no
  // call is made, and `on_end` is dropped. `Response` is read by nobody.
  template <typename Response, typename Request, typename Start>
  void Make(Request request, absl::Duration timeout, const Start& start, OnEnd on_end) {
    struct Call {
      explicit Call(LiveCounter* live) : counted(live) {}

      const LiveCounter::Count counted;  // first, so that it goes last
      grpc::ClientContext context;
      Request request;
      Response response;
      OnEnd on_end;
    };
    auto call = std::make_shared<Call>(&live_);
    call->request = std::move(request);
    call->on_end = std::move(on_end);
    rpc::SetDeadline(absl::Now() + timeout, &call->context);
    if (!Begin(&call->context)) {
      return;
    }
    start(&call->context,
          &call->request,
          &call->response,
          [this, call](const grpc::Status& status) mutable {
            call->on_end(status);
            End(&call->context);
            call.reset();  // with its channel, before gRPC's own copies of this function
          });
  }

  // For a call that lives as long as its owner: a LiveCounter::Count among its members, the first.
  LiveCounter* live() { return &live_; }

  // No unary call is made from now on. Waits for all calls; from `grace` on those that Make made
  // are cancelled. False if one is left ten seconds later.
  bool Stop(absl::Duration grace);

 private:
  bool Begin(grpc::ClientContext* context);
  void End(grpc::ClientContext* context);

  LiveCounter live_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<grpc::ClientContext*> unary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
