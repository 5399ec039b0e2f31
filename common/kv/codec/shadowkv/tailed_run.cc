#include "common/kv/codec/shadowkv/tailed_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "common/kv/pool/run_pool.h"

namespace baton::kv {

int64_t TailedRun::BytesFor(size_t prompt_bytes, const TailMap& tails) {
  return std::max<int64_t>(1, static_cast<int64_t>(prompt_bytes + tails.bytes()));
}

std::unique_ptr<TailedRun> TailedRun::Take(RunPool& pool, size_t prompt_bytes, TailMap tails) {
  const std::optional<RunPool::Run> run = pool.Allocate(BytesFor(prompt_bytes, tails));
  return run.has_value()
             ? std::unique_ptr<TailedRun>(new TailedRun(pool, *run, prompt_bytes, std::move(tails)))
             : nullptr;
}

TailedRun::TailedRun(RunPool& pool, RunPool::Run run, size_t prompt_bytes, TailMap tails)
    : pool_(pool),
      prompt_bytes_(prompt_bytes),
      map_(std::move(tails)),
      run_(run),
      base_(pool.bytes(run).data()),
      tails_(base_ + prompt_bytes) {}

TailedRun::~TailedRun() {
  pool_.Release(run_);
  if (tail_run_.units > 0) {
    pool_.Release(tail_run_);
  }
}

int64_t TailedRun::ReservedBytes() const {
  return (run_.units + tail_run_.units) * static_cast<int64_t>(RunPool::kUnitBytes);
}

PageCopies TailedRun::PromptCopies(const TailedRun& other) const {
  PageCopies copies(pool_.base(), RunPool::kUnitBytes);
  const int64_t units = RunPool::UnitsFor(static_cast<int64_t>(prompt_bytes_));
  for (int64_t unit = 0; unit < units; ++unit) {
    copies.sources.push_back(static_cast<PageId>(run_.first_unit + unit));
    copies.targets.push_back(static_cast<PageId>(other.run_.first_unit + unit));
  }
  return copies;
}

std::optional<RunPool::Run> TailedRun::TakeFor(const TailMap& tails) {
  return pool_.Allocate(BytesFor(0, tails));
}

void TailedRun::MoveTails(std::byte* target, TailMap tails) {
  for (size_t part = 0; part + 1 < tails.begins.size(); ++part) {
    const size_t kept = std::min(tails.begins[part + 1] - tails.begins[part],
                                 map_.begins[part + 1] - map_.begins[part]);
    std::memmove(target + tails.begins[part], tail(part), kept);
  }
  tails_ = target;
  map_ = std::move(tails);
}

// Gives back what lies behind the first `bytes` of a run.
void TailedRun::Cut(RunPool::Run& run, size_t bytes) {
  const int64_t kept = std::max<int64_t>(1, RunPool::UnitsFor(static_cast<int64_t>(bytes)));
  if (kept < run.units) {
    pool_.Release({.first_unit = run.first_unit + kept, .units = run.units - kept});
    run.units = kept;
  }
}

void TailedRun::Grow(const RunPool::Run& run, TailMap tails) {
  MoveTails(pool_.bytes(run).data(), std::move(tails));
  if (tail_run_.units > 0) {
    pool_.Release(tail_run_);
  } else {
    Cut(run_, prompt_bytes_);
  }
  tail_run_ = run;
}

void TailedRun::Shrink(TailMap tails) {
  const size_t bytes = tails.bytes();
  MoveTails(tails_, std::move(tails));
  if (tail_run_.units == 0) {
    Cut(run_, prompt_bytes_ + bytes);
  } else {
    Cut(tail_run_, bytes);
  }
}

}  // namespace baton::kv
