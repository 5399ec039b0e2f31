// What a request asks of the engine and what it gets back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/engine/kv_sink.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/landing_memory.h"

namespace baton::engine {

struct TokenOutput {
  int32_t token_id = 0;
  // Natural logarithm of the token's probability before temperature and penalties; only when
  // logprobs were asked for.
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top_logprobs;  // most likely first
};

enum class FinishReason { kStop, kLength };

// How one sequence ended. A stop token counts as a completion token and is not among the tokens
// delivered by OnTokens.
struct SequenceFinish {
  FinishReason reason = FinishReason::kLength;
  std::optional<int32_t> stop_token_id;
};

// Accounting of a request on this worker. Durations are wall time; zero where a phase did not run.
struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, whose KV was kept from the turn before
  // Over all n sequences, stop tokens included. Role prefill: the n first tokens; role decode: all
  // tokens, the first ones (drawn by prefill) and those delivered before a loss included.
  int64_t completion_tokens = 0;
  absl::Duration queue_time;         // submitted until its first step starts
  absl::Duration prefill_time;       // first step starts until the first token is sampled
  absl::Duration transfer_time;      // first token sampled until decode committed (split only)
  absl::Duration decode_time;        // committed (or first token) until finished
  absl::Duration compress_time;      // within prefill_time: encoding the prompt's KV
  absl::Duration decompress_time;    // committed until what landed can be decoded from (split only)
  absl::Duration decode_queue_time;  // may decode until its first decode step starts
  absl::Duration first_decode_step_time;  // that step
  int64_t kv_logical_bytes = 0;           // prompt_tokens x KV layers x 2 x kv_heads x head_dim x 2
  int64_t kv_wire_bytes = 0;      // payload, segment headers and manifest sent; 0 without hand-off
  int64_t kv_resident_bytes = 0;  // whole prompt pages held after commit, slack included
  std::string kv_policy;          // canonical, as it was served
};

// Receives a request's events. Called on the engine thread, in order, one at a time, when no step
// waits to be begun; must not block. OnDone is called exactly once and last, whatever happens.
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  // Prefill of `done` of `total` prompt tokens has run.
  virtual void OnPrefillProgress(int64_t /*done*/, int64_t /*total*/) {}
  virtual void OnTokens(int32_t sequence_index, std::span<const TokenOutput> tokens) = 0;
  virtual void OnFinished(int32_t sequence_index, const SequenceFinish& finish) = 0;
  virtual void OnDone(const absl::Status& status, const RequestStats& stats) = 0;
};

// A request may be a turn of a conversation (`session_id`, n = 1). When it has ended, its KV is
// kept under that name until it is needed: when the next turn's prompt begins with exactly the
// token ids whose KV is kept, and its policy is the same, only the rest of the prompt is computed;
// else the kept KV is dropped and the whole prompt is computed. Kept KV is the first to go when
// memory is short, so it saves work and promises nothing.

// A request may be the continuation of one whose decode worker was lost (architecture.md section
// 3): `delivered` are the token ids that its client has, one list per sequence (n) or none at all.
// The sequences take these tokens in place of drawn ones, a step for each, so that KV, penalties
// and random numbers become what they were; the listener is told of what comes after them, and of
// the end of a sequence in any case.

// Role both: prefill and decode here. Role prefill: `sink` set, ends after the hand-off; OnTokens
// then delivers only the n first tokens, and OnFinished only sequences that end with that token.
struct GenerateRequest {
  std::string request_id;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::string kv_policy = "dense";
  std::string session_id;                       // empty: none; never with role prefill
  std::vector<std::vector<int32_t>> delivered;  // never with role prefill
  absl::Time deadline = absl::InfiniteFuture();
  std::unique_ptr<KvSink> sink;
  // Instead of `sink`: called once by Submit when the request is admitted, so that a refused one
  // never reaches its peer.
  std::function<std::unique_ptr<KvSink>()> open_sink;
};

// Role decode: asks for pages for prompt_tokens + n x max_tokens before any prefill work. Its
// listener is not told again what prefill has delivered: neither the n first tokens nor OnFinished
// of a sequence that ended with its first token.
struct ReserveRequest {
  std::string request_id;
  int64_t prompt_tokens = 0;
  SamplingParams sampling;
  std::string kv_policy = "dense";
  // A turn of a conversation; goes with the prompt itself, of prompt_tokens ids.
  std::string session_id = {};
  std::vector<int32_t> prompt = {};
  std::vector<std::vector<int32_t>> delivered = {};
  absl::Time deadline = absl::InfiniteFuture();
};

// A granted reservation: where the prompt's KV has to land.
struct ReservationGrant {
  // The request goes on from KV that was kept here: nothing will land, all else is empty, and the
  // listener gets the first tokens too.
  bool extends_kept = false;
  uint64_t reservation_id = 0;
  // Random per reservation; a message that carries another epoch is refused.
  uint64_t epoch = 0;
  absl::Duration lease;
  int64_t prompt_tokens = 0;
  int32_t pages_per_layer = 0;
  int64_t page_bytes = 0;
  int32_t hidden_pages = 0;
  // Prompt page memory in window order: [shipped layers][pages_per_layer], each page_bytes long,
  // then hidden_pages of hidden states. Pages that lie one behind the other are one piece: a prompt
  // of 8K in diffkv has 66,000.
  std::vector<std::span<std::byte>> memory;
  // How bytes get there; borrowed, outlives the engine.
  kernels::LandingMemory* landing = &kernels::HostLanding();
  // Encoded formats: how many pages of each shipped layer a commit's kv_state says were sent;
  // kInvalidArgument when it can't be of this prompt. Pure, thread-safe, valid while the
  // reservation is open. Empty: all pages are sent.
  std::function<absl::StatusOr<std::vector<int32_t>>(std::string_view kv_state)> sent_pages;
};

// Pages [page_begin, page_end) of each of the shipped layers [layer_begin, layer_end), in all
// heads.
struct LandedPages {
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  int32_t page_begin = 0;
  int32_t page_end = 0;

  constexpr bool operator==(const LandedPages&) const = default;
};

// What prefill hands over at commit besides the pages.
struct CommitInfo {
  std::vector<TokenOutput> first_tokens;                // [n]
  std::vector<std::optional<SequenceFinish>> finished;  // [n]; set where the first token ends it
  // Bit t set: token id t occurs in the prompt. Sent only when repetition_penalty != 1.
  std::vector<uint8_t> prompt_token_bitmap;
  // What an encoded format needs besides the pages (kv::EncodedKv::State).
  std::string kv_state;
  int64_t kv_wire_bytes = 0;
};

}  // namespace baton::engine
