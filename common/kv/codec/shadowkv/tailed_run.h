// A sequence's memory in one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"

#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/memory.h"

namespace baton::kv {

// A run that begins with what there is of the prompt. The tails lie behind it or, once they grew,
// in a run of their own. Engine thread; prompt(), tail() and on_host() any, MoveTails the executor
// thread.
class TailedRun {
 public:
  // Bytes that such a run takes; at least one.
  static int64_t BytesFor(size_t prompt_bytes, const TailMap& tails);
  // Null when `pool`, which outlives the run, has no such room now. `ops_on_host`: no op looks at
  // the pool between steps. A device's may, also where the pool is the host's: what it still codes
  // of a sequence that has ended goes to memory that is another's by then.
  static std::unique_ptr<TailedRun> Take(RunPool& pool,
                                         bool ops_on_host,
                                         size_t prompt_bytes,
                                         TailMap tails);
  ~TailedRun();
  TailedRun(const TailedRun&) = delete;
  TailedRun& operator=(const TailedRun&) = delete;

  std::byte* prompt() const { return base_; }
  std::byte* tail(size_t part) const { return tails_ + map_.begins[part]; }
  // Whether the host may look at it.
  bool on_host() const { return pool_.on_host(); }
  // Bytes of pool memory taken.
  int64_t ReservedBytes() const;

  // The units that hold the prompt, and may hold the beginning of the tails, to those of `other`, a
  // run of the same pool and sizes.
  PageCopies PromptCopies(const TailedRun& other) const;
  // Room for longer tails, which Grow takes over; nothing when the pool has none now.
  std::optional<RunPool::Run> TakeFor(const TailMap& tails);
  void GiveBack(const RunPool::Run& run) { pool_.Release(run); }
  // From now on the tails are those in `run`, which begin with the bytes of those before. Where ops
  // are the host's they are there at once; else once MoveTails was called, and the memory of those
  // before stays taken until Trim.
  void Grow(const RunPool::Run& run, TailMap tails);
  // Brings tails that grew to where they are, if they aren't there: in order with the ops of
  // `space`, that of the ops, and before any that looks at them.
  absl::Status MoveTails(kernels::MemorySpace& space);
  // Gives back what tails took before they grew.
  void Trim();
  // Gives back what lies behind shorter tails. On a device nothing: to move them takes ops.
  void Shrink(TailMap tails);

 private:
  // Tails that grew, as they were.
  struct Before {
    TailMap map;
    std::byte* tails = nullptr;
    RunPool::Run run;    // no units: they are in run_
    bool moved = false;  // nobody reads them any more
  };

  TailedRun(RunPool& pool, bool ops_on_host, RunPool::Run run, size_t prompt_bytes, TailMap tails);
  // Bytes that a part of the tails has in both of two maps.
  static size_t CommonBytes(const TailMap& a, const TailMap& b, size_t part);
  void Cut(RunPool::Run& run, size_t bytes);

  RunPool& pool_;
  const bool ops_on_host_;
  const size_t prompt_bytes_;
  TailMap map_;
  RunPool::Run run_;
  RunPool::Run tail_run_;  // no units: the tails are in run_
  std::byte* const base_;
  std::byte* tails_;              // map_
  std::optional<Before> before_;  // from Grow to Trim
};

}  // namespace baton::kv
