// A sequence's memory in one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/run_pool.h"

namespace baton::kv {

// A run that begins with what there is of the prompt. The tails lie behind it or, once they grew,
// in a run of their own. Engine thread; prompt(), tail() and on_host() any.
class TailedRun {
 public:
  // Bytes that such a run takes; at least one.
  static int64_t BytesFor(size_t prompt_bytes, const TailMap& tails);
  // Null when `pool`, which outlives the run, has no such room now.
  static std::unique_ptr<TailedRun> Take(RunPool& pool, size_t prompt_bytes, TailMap tails);
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
  // The longer tails begin with the bytes of the shorter ones. On the host.
  void Grow(const RunPool::Run& run, TailMap tails);
  // Gives back what lies behind shorter tails. On the host.
  void Shrink(TailMap tails);

 private:
  TailedRun(RunPool& pool, RunPool::Run run, size_t prompt_bytes, TailMap tails);
  void MoveTails(std::byte* target, TailMap tails);
  void Cut(RunPool::Run& run, size_t bytes);

  RunPool& pool_;
  const size_t prompt_bytes_;
  TailMap map_;
  RunPool::Run run_;
  RunPool::Run tail_run_;  // no units: the tails are in run_
  std::byte* const base_;
  std::byte* tails_;  // map_
};

}  // namespace baton::kv
