#include <cstdint>
#include <memory>

#include "common/engine/active_request.h"
#include "common/engine/admission_gate.h"
#include "common/engine/engine_state.h"
#include "common/engine/executor.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_pool.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/run_pool.h"

namespace baton::engine {
namespace {

// Beside dense pages. What a sequence holds in an encoded format is the executor's to know while a
// step refers to it.
int64_t OtherBytes(const ActiveRequest& request) {
  int64_t bytes = 0;
  for (const Sequence& sequence : request.sequences) {
    if (request.steps_in_flight == 0 && sequence.encoded != nullptr) {
      bytes += sequence.encoded->ReservedBytes();
    }
    bytes += sequence.staged == nullptr ? 0 : sequence.staged->ReservedBytes();
  }
  return bytes;
}

int64_t OrphanedBytes(const EngineState& state) {
  int64_t bytes = 0;
  for (const std::unique_ptr<ActiveRequest>& request : state.closing) {
    bytes += request->pages_held * static_cast<int64_t>(state.parts.format->page_bytes()) +
             OtherBytes(*request);
  }
  return bytes;
}

}  // namespace

void PublishLoad(EngineState& state) {
  // Who waits for memory that hand-offs still read waits for peers, which have time limits.
  const bool waits = !state.waiting.empty() && state.sink_reading.empty();
  const bool has_work = state.step_in_flight || waits || !state.prefilling.empty() ||
                        NextExpansion(state).request != nullptr || !state.decoding.empty();
  EngineLoad load;
  const WaitingLoad waiting = state.parts.gate->waiting();
  load.waiting_requests = waiting.requests;
  load.waiting_tokens = waiting.tokens;
  for (const ActiveRequest* request : state.prefilling) {
    load.waiting_tokens += request->prompt_tokens - request->sequences.front().computed_tokens;
    if (request->prefill_started == absl::InfiniteFuture()) {
      load.unstarted_requests += 1;
      load.unstarted_sequences += request->running_slots;
    }
  }
  int32_t reserved_slots = 0;
  for (const auto& [id, request] : state.reserved) {
    reserved_slots += request->running_slots;
  }
  load.running_sequences = state.running_slots - reserved_slots;
  load.reservations = static_cast<int64_t>(state.reserved.size());
  load.pages_total = state.parts.pool->pages_total();
  load.pages_free = state.parts.pool->pages_free() + state.kept.pages_held();
  load.kept_sessions = static_cast<int64_t>(state.kept.size());
  load.kept_bytes =
      state.kept.encoded_bytes() +
      state.kept.pages_held() * static_cast<int64_t>(state.parts.format->page_bytes());
  load.pages_reserved = state.pages_reserved;
  load.orphaned_bytes = OrphanedBytes(state);
  for (const auto& [id, format] : state.parts.codecs->formats()) {
    load.format_pools.push_back({.format = kv::KvFormatName(id), .bytes = format->pool()});
    if (const kv::PoolBytes host = format->host_pool(); host.total > 0) {
      load.format_pools.push_back({.format = "shadowkv_host", .bytes = host});
    }
  }
  if (const kv::HiddenPool* hidden = state.parts.codecs->hidden()) {
    load.format_pools.push_back({.format = "hidden", .bytes = hidden->pool()});
  }
  if (const kv::RunPool* staging = state.parts.staging.get()) {
    load.format_pools.push_back(
        {.format = "staging",
         .bytes = {.total = staging->bytes_total(), .free = staging->bytes_free()}});
  }
  load.steps = state.steps;
  load.progress = state.parts.executor->progress();
  load.has_work = has_work;
  state.parts.load->Set(load);
}

}  // namespace baton::engine
