// One Decode.Generate call: turns the engine's events into messages and back-pressure into bounds.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/stream_writer.h"
#include "common/trace/call_span.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::decode::operations {

// Reactor and listener in one: shared by gRPC (until OnDone) and by the engine (until it has
// dropped the request), whichever lasts longer. The call ends once, in End, when the engine says
// that the request is over; a client that goes away only asks the engine to cancel. So nothing of
// the call is in use when gRPC calls OnDone.
class GenerateCall final : public grpc::ServerWriteReactor<worker::v1::DecodeEvent>,
                           public engine::RequestListener,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // All are borrowed; `context` lives until OnDone.
  GenerateCall(worker::Worker& worker,
               handoff::Landing& landing,
               grpc::CallbackServerContext* context);

  // Called once, by whoever made it with make_shared.
  void Start(const worker::v1::DecodeRequest& request);

  // gRPC.
  void OnWriteDone(bool ok) override { writer_.OnWriteDone(ok); }
  void OnCancel() override;
  void OnDone() override;

  // Engine thread.
  void OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) override;
  void OnFinished(int32_t sequence_index, const engine::SequenceFinish& finish) override;
  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override;

 private:
  absl::Status Check(const worker::v1::DecodeRequest& request) const;
  absl::Status SubmitLocally(const worker::v1::DecodeRequest& request);
  absl::Status Reserve(const worker::v1::DecodeRequest& request);
  // Decides what the policy comes to and fills layout_; refuses one that is not served.
  absl::Status DescribeLayout(const std::string& kv_policy);
  // Engine thread: the answer to Reserve.
  void OnGranted(absl::StatusOr<engine::ReservationGrant> grant);
  void WriteReserved(const engine::ReservationGrant& grant,
                     std::vector<worker::v1::TransportEndpoint> endpoints);
  // No hand-off will take place: writes the first message, once, before any other.
  void AnnounceLocalPrefill();
  // The engine knows the request: a cancellation that came earlier is passed on.
  void MarkAccepted();
  void Write(worker::v1::DecodeEvent event);
  void Cancel(absl::Status reason);
  void End(const absl::Status& status, const engine::RequestStats& stats);
  void EndSpan(const absl::Status& status, const engine::RequestStats& stats);

  worker::Worker& worker_;
  handoff::Landing& landing_;
  grpc::CallbackServerContext* const context_;
  const worker::Worker::OpenCall open_call_;
  const absl::Time started_;
  const absl::Time deadline_;
  const rpc::RequestMetadata metadata_;
  trace::CallSpan span_;
  std::string request_id_;
  int64_t prompt_tokens_ = 0;
  kv::v1::KvLayout layout_;  // of this prompt
  bool with_logprobs_ = false;
  bool local_prefill_ = false;
  rpc::StreamWriter<worker::v1::DecodeEvent> writer_;
  std::shared_ptr<GenerateCall> self_;  // until gRPC's OnDone

  absl::Mutex mutex_;
  bool accepted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Mutex announce_mutex_;  // held while the first message is written
  bool announced_ ABSL_GUARDED_BY(announce_mutex_) = false;
};

}  // namespace baton::decode::operations
