// The engine: schedules sequences into steps and owns the KV pool. One class runs all three roles.
//
// Threads: the engine thread owns scheduling state, page tables and reservations; the executor
// thread owns the device and the model. Public methods only enqueue a command (bounded queue; a
// full one is kResourceExhausted) or read an atomic snapshot, so they may be called from any
// thread, reactors included. Listener and hook calls come from the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/model/model.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"

namespace baton::engine {

enum class Role { kBoth, kPrefill, kDecode };

struct EngineOptions {
  Role role = Role::kBoth;
  // Bytes of the dense KV page pool, in which prompts are computed too.
  int64_t kv_pool_bytes = int64_t{1} << 30;
  // Bytes of the pools of encoded formats; a format without a pool is not served.
  kv::CodecPools codec_pools;
  // Roles prefill and decode on a device: bytes for prompts on their way from or to its pages, each
  // from its admission to its hand-off, or from its reservation to the first step behind its
  // commit; of the host with prefill, of the device with decode. Requests that find none of it free
  // wait or are refused, as with pages.
  int64_t staging_bytes = int64_t{1} << 30;
  // Where the pools lie; null: in the memory that ops work on. Host memory may be of another kind,
  // such as one that other processes read.
  kernels::MemorySpace* kv_memory = nullptr;
  // Of the model; null: policies have the grammar's defaults.
  std::shared_ptr<const kv::KvCalibration> calibration = {};
  int32_t page_tokens = 32;
  kernels::DType page_dtype = kernels::DType::kBF16;
  // Tokens in one step, and prompt tokens of one sequence in one step. The model must have been
  // loaded for as many rows (max_step_rows) and for max_running_sequences logit rows.
  int32_t step_token_budget = 4096;
  int32_t prefill_chunk_tokens = 2048;
  // Sequences that may be running (role prefill: requests in prefill or hand-off).
  int32_t max_running_sequences = 256;
  // Bounds of the waiting queue (roles both and prefill).
  int32_t max_waiting_requests = 1024;
  int64_t max_waiting_tokens = int64_t{1} << 22;
  // A reservation without a sign of life expires after this.
  absl::Duration lease = absl::Seconds(10);
  // Longest prompt + max_tokens of a sequence; 0 = the model's max_position_embeddings.
  int64_t max_sequence_tokens = 0;
  // KV kept between the turns of conversations: so many at most (0: none), each for so long. It
  // lies in the same pools and makes room for requests, oldest first.
  int32_t max_kept_sessions = 1024;
  absl::Duration kept_ttl = absl::Minutes(10);
  // Role decode computes at most so many new tokens of a turn by itself; a longer one is computed
  // whole by a prefill worker.
  int32_t max_extension_tokens = 4096;
  // Commands from other threads that may wait for the engine thread.
  int32_t max_queued_commands = 8192;
  // Clock of deadlines and leases; borrowed; null = the machine's.
  const Clock* clock = nullptr;
};

// Memory of one KV format besides dense.
struct FormatPool {
  std::string_view format;  // a literal
  kv::PoolBytes bytes;
};

// A snapshot for load reports and gauges.
struct EngineLoad {
  int64_t waiting_requests = 0;
  int64_t waiting_tokens = 0;  // prompt tokens not yet prefilled, running prompts included
  int64_t running_sequences = 0;
  // Admitted, but no step has begun their prompt: requests, and those of running_sequences that are
  // theirs.
  int64_t unstarted_requests = 0;
  int64_t unstarted_sequences = 0;
  int64_t reservations = 0;  // granted, not yet committed
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_reserved = 0;  // owned by reservations not yet committed
  std::vector<FormatPool> format_pools;
  // Pool memory of requests that have ended, which a step or a transfer still looks at.
  int64_t orphaned_bytes = 0;
  // KV kept between turns; pages_free counts its pages, for it makes room.
  int64_t kept_sessions = 0;
  int64_t kept_bytes = 0;
  int64_t steps = 0;
  // Rises with every step and, while one runs, with every tile of rows that has run through a
  // layer's attention: a long step of a large model on few cores is no standstill.
  int64_t progress = 0;
  // Something waits for a step, or runs in one; not what waits for memory while hand-offs read
  // some.
  bool has_work = false;
  bool draining = false;
};

// Told about reservations by the engine thread; implemented by the landing side. May be null.
class ReservationObserver {
 public:
  virtual ~ReservationObserver() = default;
  // The reservation has ended: committed, cancelled, expired or past its deadline. Called once,
  // before its pages can be reused and, at commit, before its sequences can decode; when it
  // returns, no write from outside can reach the pages any more.
  virtual void OnReservationReleased(uint64_t reservation_id) = 0;
};

// Observes steps and requests for metrics; every method is called on the engine thread.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStep(int32_t /*prefill_tokens*/,
                      int32_t /*decode_tokens*/,
                      absl::Duration /*duration*/) {}
  virtual void OnLeaseExpired() {}
  // A turn of a conversation starts: from kept KV or from nothing.
  virtual void OnSessionTurn(bool /*extends_kept*/) {}
};

// How the KV of a prompt is handed over under a policy; the same on both sides.
struct HandoffShape {
  std::string policy;  // canonical
  std::string format;  // "dense", ...
  uint16_t format_version = 0;
  int32_t page_tokens = 0;  // 0 where pages are not runs of tokens
  kv::WindowShape window;
  // Stored layers that are shipped; the others leave as hidden states.
  int32_t shipped_layers = 0;
  // What of the calibration shapes the pages (EncodedFormat::calibration_digest).
  uint64_t calibration_digest = 0;
  int32_t hidden_pages = 0;
  int64_t hidden_page_bytes = 0;
};

class Engine {
 public:
  // `reservation` OK: the grant; else why not: kResourceExhausted when the pool is full now,
  // kInvalidArgument when it can never fit.
  using ReserveCallback = std::function<void(absl::StatusOr<ReservationGrant> reservation)>;
  using StatusCallback = std::function<void(absl::Status)>;

  virtual ~Engine() = default;

  // Starts both threads. The model is owned; `ops`, what `exec` points to and the observers are
  // borrowed; observers may be null.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::unique_ptr<model::Model> model,
                                                        const kernels::ExecContext& exec,
                                                        const kernels::OpTable& ops,
                                                        const EngineOptions& options,
                                                        ReservationObserver* reservations,
                                                        EngineObserver* observer);

  // Roles both and prefill. A rejected request (bad argument, queue full, draining) is answered by
  // the returned status and its listener is never called.
  virtual absl::Status Submit(GenerateRequest request,
                              std::shared_ptr<RequestListener> listener) = 0;

  // Role decode. A returned error (bad argument, wrong role, draining, duplicate id, full command
  // queue) or a refusal through `granted` ends the matter: the listener is never called, and
  // `granted` is not called after a returned error. Otherwise the listener gets events once the
  // reservation is committed; OnDone also when it is cancelled, when its lease expires
  // (kUnavailable; later use of the reservation is kFailedPrecondition, STALE_EPOCH) or when it
  // passes its deadline.
  virtual absl::Status Reserve(ReserveRequest request,
                               std::shared_ptr<RequestListener> listener,
                               ReserveCallback granted) = 0;
  // In the following three `done` is called once: on the engine thread, or at once on the caller's
  // with kResourceExhausted when the command queue is full, with kUnavailable after Shutdown.
  //
  // A new prefill attempt starts to land (attempt >= the newest seen, else kFailedPrecondition);
  // renews the lease. `done` comes when nothing of an older attempt is being read any more.
  virtual void BeginAttempt(uint64_t reservation_id,
                            uint64_t epoch,
                            uint32_t attempt,
                            StatusCallback done) = 0;
  // Any sign of life of the reservation's owner.
  virtual void RenewLease(uint64_t reservation_id, uint64_t epoch, StatusCallback done) = 0;
  // Publishes the page tables: the sequences join the next step. Once per reservation, by its
  // newest attempt; kInvalidArgument when `info` does not fit the reservation, which then stays
  // open.
  virtual void Commit(uint64_t reservation_id,
                      uint64_t epoch,
                      uint32_t attempt,
                      CommitInfo info,
                      StatusCallback done) = 0;
  // Pages of the newest attempt are in place: a prompt that lands beside a device's pools may be
  // moved while the rest is still on its way. A hint like the next one.
  virtual void PagesLanded(uint64_t reservation_id,
                           uint64_t epoch,
                           uint32_t attempt,
                           const LandedPages& pages) = 0;
  // Hidden states may be made into KV while the rest of the prompt is still on its way: the first
  // `pages` of the newest attempt's are in place. A hint, without an answer: one that is not of an
  // open reservation's newest attempt, or comes while the command queue is full, changes nothing.
  virtual void HiddenLanded(uint64_t reservation_id,
                            uint64_t epoch,
                            uint32_t attempt,
                            int32_t pages) = 0;

  // What a request with this policy gets; a tier or `auto` becomes a policy here, and the request
  // is then made with HandoffShape::policy. Errors as for such a request. Thread-safe.
  virtual absl::StatusOr<HandoffShape> DescribeHandoff(std::string_view kv_policy,
                                                       int64_t prompt_tokens) const = 0;

  // Ends the request wherever it is; its listener gets OnDone(reason) and every page returns.
  // An unknown id is ignored: it has ended already. Never lost, whatever the queue holds. A request
  // that has been committed to its sink gets OnDone at once; its pages follow when the sink
  // answers.
  virtual void Cancel(std::string_view request_id, absl::Status reason) = 0;

  // Refuses new requests and reservations from now on; running ones finish.
  virtual void Drain() = 0;
  // Ends every request with kUnavailable and waits: for the step in flight, for copies from a
  // device and, ten seconds at most, for sinks that still read. What other threads bring later is
  // refused. Called by one thread; again it does nothing.
  virtual void Shutdown() = 0;
  virtual EngineLoad load() const = 0;
  // Names of the KV formats that this engine serves, "dense" first.
  virtual std::vector<std::string> kv_formats() const = 0;
  virtual const model::Model& model() const = 0;
  virtual const EngineOptions& options() const = 0;
  // The layout in which this engine keeps KV pages.
  virtual kernels::DensePageLayout page_layout() const = 0;
};

}  // namespace baton::engine
