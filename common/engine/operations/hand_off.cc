#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/engine/operations/operations.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"

namespace baton::engine {
namespace {

CommitInfo MakeCommitInfo(const ActiveRequest& request, std::span<const TokenOutput> first_tokens) {
  CommitInfo info;
  for (const TokenOutput& token : first_tokens) {
    info.first_tokens.push_back(token);
    info.finished.push_back(FinishedBy(request.sampling, 1, token.token_id));
  }
  if (const kv::EncodedKv* encoded = request.sequences.front().encoded.get()) {
    info.kv_state = encoded->State();
  }
  if (request.prompt_bitmap != nullptr) {
    info.prompt_token_bitmap = *request.prompt_bitmap;
  }
  return info;
}

}  // namespace

void HandOff(EngineState& state,
             ActiveRequest& request,
             std::span<const TokenOutput> first_tokens) {
  request.phase = Phase::kHandingOff;
  request.stats.completion_tokens = static_cast<int64_t>(first_tokens.size());
  request.stats.kv_logical_bytes =
      kv::KvFormat::LogicalBytes(state.parts.dimensions, request.prompt_tokens);
  CommitInfo info = MakeCommitInfo(request, first_tokens);
  for (size_t i = 0; i < first_tokens.size() && !request.first_tokens_delivered; ++i) {
    DeliverToken(state, request, static_cast<int32_t>(i), first_tokens[i], info.finished[i]);
  }
  request.commit = std::move(info);
  CommitShipped(state, request);
}

void CommitShipped(EngineState& state, ActiveRequest& request) {
  if (!request.at_rest()) {
    return;
  }
  request.sink_reading = true;
  state.sink_reading.emplace(request.serial, &request);
  // Pools stay alive with the callback: a sink may read pages until it answers, even when the
  // engine is gone by then.
  request.sink->Commit(
      *std::exchange(request.commit, std::nullopt),
      [commands = state.parts.commands,
       pool = state.parts.pool,
       codecs = state.parts.codecs,
       staging = state.parts.staging,
       serial = request.serial](absl::Status status, int64_t wire_bytes) {
        commands->PushAlways([serial, status = std::move(status), wire_bytes](EngineState& engine) {
          FinishHandOff(engine, serial, status, wire_bytes);
        });
      });
}

void FinishHandOff(EngineState& state,
                   uint64_t request_serial,
                   const absl::Status& status,
                   int64_t wire_bytes) {
  const auto entry = state.sink_reading.find(request_serial);
  if (entry == state.sink_reading.end()) {
    return;
  }
  ActiveRequest& request = *entry->second;
  state.sink_reading.erase(entry);
  request.sink_reading = false;
  request.sink_finished = true;
  if (request.ended()) {
    return;
  }
  request.stats.kv_wire_bytes = wire_bytes;
  request.stats.transfer_time = state.Now() - request.first_token_time;
  EndRequest(state, request, status);
}

}  // namespace baton::engine
