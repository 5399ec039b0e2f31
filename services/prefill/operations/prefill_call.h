// One Prefill.Prefill call: accepted, progress, first tokens, committed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/engine/request.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/send/sender.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/stream_writer.h"
#include "common/trace/call_span.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/prefill/operations/shipping.h"

namespace baton::prefill::operations {

// Reactor and listener in one: shared by gRPC (until OnDone) and by engine and sender (until they
// have dropped the request). The call ends once, in End, when the engine says that the request is
// over; a client that goes away only asks the engine to cancel. A call that ships retained KV has
// no engine request and ends when the transfer has, or at once with its client.
class PrefillCall final : public grpc::ServerWriteReactor<worker::v1::PrefillEvent>,
                          public engine::RequestListener,
                          public std::enable_shared_from_this<PrefillCall> {
 public:
  // Both are borrowed; `context` lives until OnDone.
  PrefillCall(worker::Worker& worker, grpc::CallbackServerContext* context);

  // Called once, by whoever made it with make_shared.
  void Start(const Shipping& shipping, const worker::v1::PrefillRequest& request);

  // gRPC.
  void OnWriteDone(bool ok) override { writer_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override;

  // Engine thread.
  void OnPrefillProgress(int64_t done, int64_t total) override;
  void OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) override;
  void OnFinished(int32_t sequence_index, const engine::SequenceFinish& finish) override;
  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override;

 private:
  // Who carries the request, and so whom a cancellation goes to.
  enum class Carrier { kNobody, kEngine, kRetention };

  absl::Status Check(const worker::v1::PrefillRequest& request) const;
  // What the engine is asked for; keeps what the call needs of it.
  absl::StatusOr<engine::GenerateRequest> Read(const worker::v1::PrefillRequest& request);
  absl::Status Submit(const Shipping& shipping,
                      const worker::v1::PrefillRequest& request,
                      engine::GenerateRequest generate);
  std::unique_ptr<engine::KvSink> OpenSink(const Shipping& shipping,
                                           const worker::v1::PrefillRequest& request);
  std::unique_ptr<engine::KvSink> OpenRetainingSink(const Shipping& shipping,
                                                    const worker::v1::PrefillRequest& request);
  // The transfer failed before the prompt was computed to its end.
  void OnTransferFailed(const Shipping& shipping, const absl::Status& status);
  // Ships retained KV, as soon as there is some; else computes it.
  void Lookup(const Shipping& shipping,
              const worker::v1::PrefillRequest& request,
              engine::GenerateRequest generate);
  // OK, or why the call has ended or is to end.
  absl::Status SetCarrier(Carrier carrier);
  // Its caller still waits for it.
  bool Wanted();
  void Replay(const std::shared_ptr<const handoff::RetainedKv>& kv,
              std::shared_ptr<engine::KvSink> sink);
  void OnReport(const handoff::TransferReport& report);
  // Writes the first message, once, before any other.
  void AnnounceAccepted();
  // The engine knows the request: a cancellation that came earlier is passed on.
  void MarkAccepted();
  // Caller, transfer or writer: the request is of no use any more.
  void Cancel(absl::Status reason);
  // Writes first_tokens once every sequence has its first token or its end.
  void WriteFirstTokensIfComplete();
  void WriteCommitted(const engine::RequestStats& stats);
  void Write(worker::v1::PrefillEvent event);
  void End(const absl::Status& status, const engine::RequestStats& stats);
  void EndSpan(const absl::Status& status, const engine::RequestStats& stats);

  worker::Worker& worker_;
  grpc::CallbackServerContext* const context_;
  const worker::Worker::OpenCall open_call_;
  const absl::Time started_;
  const absl::Time deadline_;
  const rpc::RequestMetadata metadata_;
  trace::CallSpan span_;
  std::string request_id_;
  int64_t prompt_tokens_ = 0;
  engine::HandoffShape handoff_shape_;
  int32_t num_sequences_ = 0;
  // The first token is the last one: every sequence ends with it.
  bool ends_with_first_token_ = false;
  bool with_logprobs_ = false;
  // Set before the engine knows the request; null: its KV is not retained.
  std::shared_ptr<handoff::RetainedKv> retained_;
  bool from_retained_ = false;
  rpc::StreamWriter<worker::v1::PrefillEvent> writer_;
  std::shared_ptr<PrefillCall> self_;  // until gRPC's OnDone

  // Engine thread only.
  worker::v1::FirstTokens first_tokens_;
  int32_t complete_sequences_ = 0;

  absl::Mutex mutex_;
  Carrier carrier_ ABSL_GUARDED_BY(mutex_) = Carrier::kNobody;
  absl::Status cancel_reason_ ABSL_GUARDED_BY(mutex_);  // OK: nobody has cancelled
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  handoff::TransferReport report_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex announce_mutex_;  // held while the first message is written
  bool announced_ ABSL_GUARDED_BY(announce_mutex_) = false;
};

}  // namespace baton::prefill::operations
