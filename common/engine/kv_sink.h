// Where a prefilled sequence's KV goes when it leaves this worker.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace baton::kernels {
class LandingMemory;
}  // namespace baton::kernels

namespace baton::engine {

struct CommitInfo;

// KV that will not change any more: whole pages [page_begin, page_begin + page_count) of each of
// the layers. `memory` is [layer_end - layer_begin][page_count] pages, of which neighbours may be
// one piece; it stays valid and unchanged until the engine has seen Commit's or Abort's `released`
// callback.
struct ReadyKv {
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  int32_t page_begin = 0;
  int32_t page_count = 0;
  std::vector<std::span<const std::byte>> memory;
  // The device's memory that the pages are in, for a sink that reads devices; null: the host's.
  kernels::LandingMemory* device = nullptr;
  // An encoded layer: those of a prompt come at its end, when decode waits for them.
  bool encoded = false;
};

// Implemented by handoff/send (another worker). A sequence without a sink stays in the local pool.
// Exactly one of Commit and Abort is called, last, and both return at once. From the callback on
// the sink may be destroyed, by any thread, also while Commit or Abort is still inside; the engine
// does so later, on its own thread. Only the sink of a request that Submit rejected is destroyed
// without either. Calls never overlap: Commit and Abort come when no step that ships to the sink is
// in flight, and nothing that it ships.
class KvSink {
 public:
  virtual ~KvSink() = default;
  // Whether LayersReady may be given pages of a device where they are; else it gets copies of them
  // in the host's memory. Asked before the first of them, on the engine thread, as often as the
  // prompt's turn may have come.
  virtual bool reads_devices() { return false; }
  // While later layers still compute; on the executor thread, or where pages come from a device on
  // the one that waits for their copies. Must not block and can't fail: an error is remembered and
  // reported by Commit.
  virtual void LayersReady(ReadyKv ready) = 0;
  // Engine thread, after every page was given to LayersReady. `done` is called once, from any
  // thread, with OK when decode has published the sequence, else why not; the engine keeps the
  // pages until then.
  virtual void Commit(CommitInfo info,
                      std::function<void(absl::Status status, int64_t wire_bytes)> done) = 0;
  // Engine thread: the request ended before Commit. `released` is called once, from any thread,
  // when the pages are no longer read.
  virtual void Abort(absl::Status reason, std::function<void()> released) = 0;
};

}  // namespace baton::engine
