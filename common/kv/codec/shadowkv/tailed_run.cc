#include "common/kv/codec/shadowkv/tailed_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/memory.h"

namespace baton::kv {

int64_t TailedRun::BytesFor(size_t prompt_bytes, const TailMap& tails) {
  return std::max<int64_t>(1, static_cast<int64_t>(prompt_bytes + tails.bytes()));
}

std::unique_ptr<TailedRun> TailedRun::Take(RunPool& pool,
                                           bool ops_on_host,
                                           size_t prompt_bytes,
                                           TailMap tails) {
  const std::optional<RunPool::Run> run = pool.Allocate(BytesFor(prompt_bytes, tails));
  return run.has_value() ? std::unique_ptr<TailedRun>(new TailedRun(
                               pool, ops_on_host, *run, prompt_bytes, std::move(tails)))
                         : nullptr;
}

TailedRun::TailedRun(
    RunPool& pool, bool ops_on_host, RunPool::Run run, size_t prompt_bytes, TailMap tails)
    : pool_(pool),
      ops_on_host_(ops_on_host),
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
  if (before_.has_value() && before_->run.units > 0) {
    pool_.Release(before_->run);
  }
}

int64_t TailedRun::ReservedBytes() const {
  const int64_t before = before_.has_value() ? before_->run.units : 0;
  return (run_.units + tail_run_.units + before) * static_cast<int64_t>(RunPool::kUnitBytes);
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

size_t TailedRun::CommonBytes(const TailMap& a, const TailMap& b, size_t part) {
  return std::min(a.begins[part + 1] - a.begins[part], b.begins[part + 1] - b.begins[part]);
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
  BATON_CHECK(!before_.has_value());
  before_ = {.map = std::exchange(map_, std::move(tails)),
             .tails = std::exchange(tails_, pool_.bytes(run).data()),
             .run = std::exchange(tail_run_, run)};
  if (ops_on_host_) {
    BATON_CHECK(MoveTails(kernels::HostMemory()).ok());
    Trim();
  }
}

absl::Status TailedRun::MoveTails(kernels::MemorySpace& space) {
  if (!before_.has_value() || std::exchange(before_->moved, true)) {
    return absl::OkStatus();
  }
  for (size_t part = 0; part + 1 < map_.begins.size(); ++part) {
    BATON_RETURN_IF_ERROR(space.Copy(tail(part),
                                     before_->tails + before_->map.begins[part],
                                     CommonBytes(map_, before_->map, part)));
  }
  return absl::OkStatus();
}

void TailedRun::Trim() {
  if (!before_.has_value()) {
    return;
  }
  BATON_CHECK(before_->moved);
  if (before_->run.units > 0) {
    pool_.Release(before_->run);
  } else {
    Cut(run_, prompt_bytes_);
  }
  before_.reset();
}

void TailedRun::Shrink(TailMap tails) {
  if (!on_host()) {
    return;
  }
  for (size_t part = 0; part + 1 < tails.begins.size(); ++part) {
    std::memmove(tails_ + tails.begins[part], tail(part), CommonBytes(tails, map_, part));
  }
  map_ = std::move(tails);
  if (tail_run_.units == 0) {
    Cut(run_, prompt_bytes_ + map_.bytes());
  } else {
    Cut(tail_run_, map_.bytes());
  }
}

}  // namespace baton::kv
