// One request's way through queue, reservation, prefill, hand-off and decode, as a state machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "proto/baton/worker/v1/decode.pb.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/sequence_output.h"
#include "services/router/session/stream_buffer.h"
#include "services/router/session/timeline.h"

namespace baton::router {

// What the flow wants done. Commands of one event are carried out in order.
enum class FlowCommand {
  kOpenDecode,     // Decode.Generate on the pair's decode worker
  kReadDecode,     // one more message from decode
  kCancelDecode,   // end the decode call and forget it
  kOpenPrefill,    // Prefill.Prefill on the current prefill worker, with attempt()
  kCancelPrefill,  // end the prefill call and forget it
  kLeavePrefill,   // forget it, but let it compute: its KV is retained for the next pair
  kStartLease,     // renew the reservation's lease until kStopLease
  kStopLease,
  kRequeue,         // back to its place in the queue: refused, or the pair was lost
  kWaitForPrefill,  // keep the reservation, find another prefill worker
  kLeaveQueue,      // no worker is wanted any more
  kNotifyClient,    // output or the final status is ready
};

// Why a worker was left.
enum class RetryReason { kDecodeRefused, kDecodeLost, kPrefillBusy, kPrefillLost };

struct FlowLimits {
  // Lost workers that one request survives, the last failure included.
  int max_attempts = 3;
  // Decode is not read while this much output waits for the client.
  size_t max_stream_buffer_bytes = size_t{256} << 10;
};

// Told about what happens, for metrics. Called inside the flow's events: must be quick.
class FlowObserver {
 public:
  virtual ~FlowObserver() = default;
  virtual void OnFirstToken(absl::Duration since_received) = 0;
  // `tokens` tokens of one sequence came `gap` after the one before them.
  virtual void OnTokenGap(absl::Duration gap, int tokens) = 0;
  virtual void OnRetry(RetryReason reason) = 0;
  // An answer that had begun was taken up by another decode worker, or could not be.
  // `from_retained_kv`: the prompt was not computed again.
  virtual void OnResume(bool resumed, bool from_retained_kv) = 0;
};

// The rules of architecture.md section 3 without any input or output: events in, commands out.
// Events of calls that were cancelled must not be given to it. Not thread-safe; the clock is an
// argument.
class RequestFlow {
 public:
  enum class Phase { kQueued, kReserving, kAwaitingPrefill, kPrefilling, kDecoding, kEnded };

  // `plan` and `observer` must outlive the flow; `tokenizer` too. kInvalidArgument: stop strings.
  static absl::StatusOr<RequestFlow> Create(const RequestPlan* plan,
                                            const text::Tokenizer* tokenizer,
                                            const FlowLimits& limits,
                                            FlowObserver* observer);

  // --- Events
  // --------------------------------------------------------------------------------------- The
  // request entered the queue.
  void OnQueued(absl::Time now);
  // A pair was chosen. local_prefill: decode is of role both and prefills by itself.
  void OnPair(bool local_prefill, absl::Time now);
  // A prefill worker for the next attempt was chosen, after kWaitForPrefill.
  void OnPrefillWorker(absl::Time now);
  void OnDecodeEvent(worker::v1::DecodeEvent event, absl::Time now);
  // The decode call ended with this status.
  void OnDecodeEnd(const absl::Status& status, absl::Time now);
  void OnPrefillEvent(const worker::v1::PrefillEvent& event, absl::Time now);
  // Whether a prefill worker holds the request's KV, or will, and can ship it again.
  void OnKvRetained(bool retained) { kv_retained_ = retained; }
  void OnPrefillEnd(const absl::Status& status, absl::Time now);
  // The client took output; decode may be read again.
  void OnOutputTaken();
  void OnDeadline(absl::Time now);
  // The client is gone.
  void OnClientCancelled(absl::Time now);
  // Ends the request with an error that came from elsewhere (no endpoints, shutdown).
  void Fail(absl::Status status, absl::Time now);
  // No prefill worker came in time: starts over where `other_pair` says that somebody can serve,
  // else fails.
  void OnPrefillWaitExpired(bool other_pair, absl::Time now);
  // Nobody has been able to serve for too long.
  void OnEndpointsGone(absl::Time now);

  // Takes the commands that the last events gave.
  std::vector<FlowCommand> TakeCommands();

  // --- State
  // ----------------------------------------------------------------------------------------
  StreamBuffer& output() { return output_; }
  Phase phase() const { return phase_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  // Waits for a worker, in the queue or for a prefill attempt.
  bool waits_for_worker() const {
    return phase_ == Phase::kQueued || phase_ == Phase::kAwaitingPrefill;
  }
  // Set once ended().
  const absl::Status& final_status() const { return final_status_; }
  const inference::v1::Usage& usage() const { return usage_; }
  const worker::v1::Reserved& reservation() const { return reservation_; }
  bool local_prefill() const { return local_prefill_; }
  // KV of the request was damaged on its way.
  bool data_loss_seen() const { return data_loss_seen_; }
  uint32_t attempt() const { return attempt_; }
  const Timeline& timeline() const { return timeline_; }
  uint32_t delivered_tokens() const;
  // What the next decode worker is asked for: the plan's policy, once output has begun what it came
  // to; and what the client has of every sequence, nothing before output has begun.
  const std::string& kv_policy() const;
  std::vector<std::span<const int32_t>> delivered() const;
  // The terminal messages of the present worker calls have come.
  bool has_decode_usage() const { return decode_usage_.has_value(); }
  bool has_commit() const { return committed_.has_value(); }
  // "queue", "prefill", "transfer" or "decode".
  std::string_view phase_name() const;

 private:
  // How prefill says that a sequence begins.
  struct FirstToken {
    std::optional<uint32_t> token_id;
    std::optional<uint32_t> stop_token_id;
    bool finished = false;
  };

  RequestFlow(const RequestPlan* plan, const FlowLimits& limits, FlowObserver* observer);

  void Emit(FlowCommand command) { commands_.push_back(command); }

  // Decode (request_flow_decode.cc).
  void OnReserved(worker::v1::Reserved reserved, absl::Time now);
  void HandleDecodeEvent(const worker::v1::DecodeEvent& event, absl::Time now);
  void AssumeCommitted(absl::Time now);
  void ReadDecodeIfRoom();
  void DecodeLost(const absl::Status& status, absl::Time now);
  void StartOver();

  // Prefill (request_flow_prefill.cc).
  void OnFirstTokens(const worker::v1::FirstTokens& first, absl::Time now);
  // Prefill's first tokens are still to come and would be overtaken by what decode says.
  bool AwaitsFirstTokens() const;
  // Whether a repeated prefill begins the sequence as it began.
  static bool BeginsAlike(const SequenceOutput& sequence, const FirstToken& token);
  // Whether decode can go on from what the client has of the sequence, however prefill begins it:
  // workers round differently by what else is in a step (docs/adr/0013). Prefill that ends a
  // sequence ships no KV of it.
  static bool CanGoOn(const SequenceOutput& sequence, const FirstToken& token);
  bool All(bool (*holds)(const SequenceOutput&, const FirstToken&),
           const std::vector<FirstToken>& tokens) const;
  void OnOtherFirstTokens(const std::vector<FirstToken>& tokens, absl::Time now);
  absl::StatusOr<std::vector<FirstToken>> ReadFirstTokens(
      const worker::v1::FirstTokens& first) const;
  void OnCommitted(const worker::v1::PrefillCommitted& committed, absl::Time now);
  void PrefillLost(const absl::Status& status, absl::Time now);
  void WaitForPrefill(RetryReason reason);

  // Output.
  void PushTokens(const worker::v1::TokenDelta& tokens, absl::Time now);
  void FinishSequence(const worker::v1::SequenceFinished& finished);
  void BeginOutput(absl::Time now);
  bool AllSequencesDone() const;
  void CompleteIfDone(absl::Time now);
  void Complete(absl::Time now);
  void FillUsage(absl::Time now);
  void FillKvUsage();
  void FillDurations(absl::Time now);
  void End(absl::Status status, absl::Time now);
  // Ends a request whose worker is lost and that nobody could take up: UNAVAILABLE, which clients
  // repeat by themselves, before the first token; ABORTED with the tokens delivered afterwards
  // (serving.md 7.3).
  void EndLost(std::string_view reason, const std::string& message, absl::Time now);

  const RequestPlan* plan_;
  FlowLimits limits_;
  FlowObserver* observer_;
  StreamBuffer output_;
  std::vector<SequenceOutput> sequences_;
  std::vector<std::optional<absl::Time>> last_token_;  // per sequence
  std::vector<FlowCommand> commands_;

  Phase phase_ = Phase::kQueued;
  bool local_prefill_ = false;
  bool decode_open_ = false;
  bool decode_reading_ = false;
  bool decode_paused_ = false;  // the client reads too slowly
  bool prefill_open_ = false;
  bool lease_running_ = false;
  worker::v1::Reserved reservation_;
  uint32_t attempt_ = 0;  // of the present reservation
  int failures_ = 0;
  uint32_t retries_ = 0;
  uint32_t resumes_ = 0;
  bool data_loss_seen_ = false;
  bool kv_retained_ = false;
  bool from_retained_kv_ = false;  // the present attempt
  // First tokens have been taken, from prefill or from a decode worker of role both.
  bool output_begun_ = false;
  bool first_tokens_seen_ = false;  // from prefill, of the present reservation
  bool resuming_ = false;           // output has begun, and no worker goes on with it yet
  std::string served_policy_;       // what the policy came to when output began
  // A decode message that came before prefill's first tokens; nothing more is read until they come.
  std::optional<worker::v1::DecodeEvent> held_event_;
  std::optional<worker::v1::DecodeUsage> decode_usage_;
  std::optional<worker::v1::PrefillCommitted> committed_;
  bool handed_off_ = false;  // decode owns the sequences
  Timeline timeline_;
  inference::v1::Usage usage_;
  absl::Status final_status_;
};

}  // namespace baton::router
