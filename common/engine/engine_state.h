// Everything that the engine thread owns. Operations (operations/*.cc) are functions over it.
//
// Invariants:
//   - A live request is in `requests` and, by its phase, in exactly one of waiting, prefilling,
//     reserved, expanding, decoding (one entry per unfinished sequence) or none (handing off,
//     landing). A reserved one whose hidden states have begun to land is in `expanding`, too.
//   - A request leaves those lists when it ends and moves to `closing`; its pages go back when no
//     submitted step and no sink refers to them, and only then.
//   - A reserved request's window is withdrawn (ReservationObserver) before it leaves that phase.
//   - At most one step is in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/engine/active_request.h"
#include "common/engine/admission_gate.h"
#include "common/engine/command_queue.h"
#include "common/engine/engine.h"
#include "common/engine/executor.h"
#include "common/engine/kept_kv.h"
#include "common/engine/load_snapshot.h"
#include "common/engine/request_checks.h"
#include "common/engine/sequence.h"
#include "common/engine/staged_copies.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "common/kv/pool/reservation_table.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/landing_memory.h"

namespace baton::engine {

// What the engine thread works with and does not change. All borrowed, except the pools and the
// queue, which callbacks given to sinks keep alive: a sink that answers after the engine is gone
// still finds them.
struct EngineParts {
  EngineOptions options;
  EngineLimits limits;
  kv::KvDimensions dimensions;
  const kv::KvFormat* format = nullptr;  // dense
  const Clock* clock = nullptr;
  std::shared_ptr<kv::PagePool> pool;
  std::shared_ptr<kv::CodecSet> codecs;
  // Memory for prompts on their way from a device (the host's) or to one (its own); null: pages are
  // handed off themselves.
  std::shared_ptr<kv::RunPool> staging;
  // Of the memory in which prompts land.
  kernels::LandingMemory* landing = nullptr;
  std::shared_ptr<CommandQueue> commands;
  AdmissionGate* gate = nullptr;
  LoadSnapshot* load = nullptr;
  Executor* executor = nullptr;
  ReservationObserver* reservation_observer = nullptr;  // may be null
  EngineObserver* observer = nullptr;                   // may be null
};

struct DecodingSequence {
  ActiveRequest* request = nullptr;
  Sequence* sequence = nullptr;
};

// What the sequences of a request but the first get of its prompt as copies.
struct PendingCopies {
  ActiveRequest* request = nullptr;
  std::vector<kv::PageCopies> copies;
};

struct EngineState {
  explicit EngineState(EngineParts engine_parts)
      : parts(std::move(engine_parts)), reservations(parts.options.lease) {}

  const EngineParts parts;
  kv::ReservationTable reservations;

  absl::flat_hash_map<std::string, std::unique_ptr<ActiveRequest>> requests;
  std::deque<ActiveRequest*> waiting;
  std::deque<ActiveRequest*> prefilling;  // first in, first out
  absl::flat_hash_map<uint64_t, ActiveRequest*> reserved;
  std::deque<ActiveRequest*> expanding;   // first in, first out
  std::deque<DecodingSequence> decoding;  // who stepped last is at the back
  std::vector<std::unique_ptr<ActiveRequest>> closing;
  absl::flat_hash_map<uint64_t, ActiveRequest*> sink_reading;  // by serial
  std::vector<Landing> pending_landings;      // until the step in flight is retired
  std::vector<PendingCopies> pending_copies;  // for the next step
  std::vector<std::function<void()>> untold;  // calls of listeners, in order
  KeptKvStore kept;

  int32_t running_slots = 0;  // of max_running_sequences, reservations included
  int64_t pages_reserved = 0;
  uint64_t next_step = 1;
  bool step_in_flight = false;
  int64_t steps = 0;
  bool stopping = false;

  absl::Time Now() const { return parts.clock->Now(); }
};

}  // namespace baton::engine
