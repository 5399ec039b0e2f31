#include "common/kv/codec/staged_window.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/pool/run_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/landing_memory.h"

namespace baton::kv {
std::unique_ptr<StagedWindow> StagedWindow::Take(const std::shared_ptr<RunPool>& pool,
                                                 kernels::LandingMemory& landing,
                                                 const StagedShape& shape) {
  const std::optional<RunPool::Run> run = pool->Allocate(shape.bytes());
  return run.has_value()
             ? std::unique_ptr<StagedWindow>(new StagedWindow(pool, landing, *run, shape))
             : nullptr;
}

StagedWindow::StagedWindow(std::shared_ptr<RunPool> pool,
                           kernels::LandingMemory& landing,
                           RunPool::Run run,
                           const StagedShape& shape)
    : pool_(std::move(pool)),
      landing_(landing),
      run_(run),
      shape_(shape),
      base_(pool_->bytes(run_).data()) {}

StagedWindow::~StagedWindow() { pool_->Release(run_); }

std::span<std::byte> StagedWindow::pages(int32_t layer, int32_t begin, int32_t count) const {
  const int64_t bytes = shape_.page_bytes_of(layer);
  return {base_ + layer * shape_.layer_bytes() + begin * bytes, static_cast<size_t>(count * bytes)};
}

int64_t StagedWindow::ReservedBytes() const {
  return run_.units * static_cast<int64_t>(RunPool::kUnitBytes);
}

absl::Status StagedWindow::Read(std::span<const SectionRead> reads) const {
  std::vector<kernels::LandedRead> landed;
  landed.reserve(reads.size());
  for (const SectionRead& read : reads) {
    landed.push_back(
        {.target = read.target, .source = pages(read.layer, 0, 0).data() + read.begin});
  }
  return landing_.ReadAll(landed);
}

void StagedWindow::AddMoves(int32_t layer,
                            int32_t page_begin,
                            std::span<const std::span<std::byte>> targets,
                            std::vector<kernels::CopyQueue::Piece>& moves) const {
  const std::byte* source = pages(layer, page_begin, 0).data();
  for (const std::span<std::byte> target : targets) {
    moves.push_back({.target = target.data(), .source = source, .bytes = target.size()});
    source += target.size();
  }
}

}  // namespace baton::kv
