// Workers whose behaviour a test writes down: in-process gRPC servers of Prefill, Decode and
// Control.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"

#include "proto/baton/worker/v1/control.grpc.pb.h"
#include "proto/baton/worker/v1/decode.grpc.pb.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"

namespace baton::router {

// What prefill tells decode: which reservations are committed. Shared by a cluster. Thread-safe.
class Handoffs {
 public:
  void Commit(uint64_t reservation_id);
  // False when `context` was cancelled first.
  bool WaitForCommit(uint64_t reservation_id, grpc::ServerContext* context);

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, bool> committed_ ABSL_GUARDED_BY(mutex_);
};

// Waits until `done` holds; false after half a minute.
bool WaitUntil(const std::function<bool()>& done);
// Sleeps until the call is cancelled, for half a minute at most.
void WaitForCancel(grpc::ServerContext* context);

using PrefillWriter = grpc::ServerWriter<worker::v1::PrefillEvent>;
using DecodeWriter = grpc::ServerWriter<worker::v1::DecodeEvent>;

// One worker process. A handler blocks its own thread; `call` counts a worker's calls from 1.
// Thread-safe where it says so.
class FakeWorker {
 public:
  using PrefillHandler = std::function<grpc::Status(
      int call, grpc::ServerContext*, const worker::v1::PrefillRequest&, PrefillWriter*)>;
  using DecodeHandler = std::function<grpc::Status(
      int call, grpc::ServerContext*, const worker::v1::DecodeRequest&, DecodeWriter*)>;

  // `handoffs` must outlive the worker. Behaves normally until told otherwise.
  FakeWorker(worker::v1::Role role, Handoffs* handoffs);
  ~FakeWorker();

  // Listens on `port` (0: a free one) under a new incarnation.
  void Start(int port = 0);
  // Ends every call at once, like a killed process.
  void Kill();

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  void set_prefill(PrefillHandler handler);  // thread-safe, like the ones below
  void set_decode(DecodeHandler handler);
  void set_free_slots(uint32_t slots) { free_slots_ = slots; }
  void set_draining(bool draining) { draining_ = draining; }
  // The normal prefill behaviour says that it retains the KV, and ships it when asked to.
  void set_retains_kv(bool retains) { retains_kv_ = retains; }
  void set_pool_tokens(uint64_t tokens) { pool_tokens_ = tokens; }

  int open_calls() const { return open_calls_; }
  int calls() const { return calls_; }
  int renewals() const { return renewals_; }
  // Requests whose retained KV was released.
  int releases() const { return releases_; }
  // Addresses of decode workers that it was told of, in the order that it was.
  std::vector<std::string> introduced() const;
  // Tokens written by the normal decode behaviour.
  int64_t tokens_written() const { return tokens_written_; }

  // The normal behaviours, for handlers that depart from them only now and then.
  grpc::Status NormalPrefill(grpc::ServerContext* context,
                             const worker::v1::PrefillRequest& request,
                             PrefillWriter* writer);
  grpc::Status NormalDecode(grpc::ServerContext* context,
                            const worker::v1::DecodeRequest& request,
                            DecodeWriter* writer);
  // Their parts. The reservation's id is returned.
  uint64_t WriteReserved(const worker::v1::DecodeRequest& request, DecodeWriter* writer);
  void WriteFirstTokens(const worker::v1::PrefillRequest& request,
                        PrefillWriter* writer,
                        uint32_t token = kFirstToken);
  void WriteToken(uint32_t index, DecodeWriter* writer);
  // Tokens of a sequence that the client of a continued request has already.
  static size_t DeliveredTokens(const worker::v1::DecodeRequest& request, uint32_t index);

  static constexpr uint32_t kFirstToken = 300;
  static constexpr uint32_t kNextToken = 301;

 private:
  class Services;

  const worker::v1::Role role_;
  Handoffs* const handoffs_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  uint64_t incarnation_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> free_slots_{4};
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> pool_tokens_{100000};
  std::atomic<int> open_calls_{0};
  std::atomic<int> calls_{0};
  std::atomic<int> renewals_{0};
  std::atomic<int> releases_{0};
  std::atomic<bool> retains_kv_{false};
  std::atomic<int64_t> tokens_written_{0};
  mutable absl::Mutex mutex_;
  std::vector<std::string> introduced_ ABSL_GUARDED_BY(mutex_);
  PrefillHandler prefill_ ABSL_GUARDED_BY(mutex_);
  DecodeHandler decode_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
