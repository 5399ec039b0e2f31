#include "common/kv/codec/staged_window.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/landing_memory.h"

namespace baton::kv {
namespace {

// Pages from `first` on that lie one behind the other.
template <typename Byte>
size_t BytesInOnePiece(std::span<const std::span<Byte>> pages, size_t first, size_t& end) {
  size_t bytes = pages[first].size();
  for (end = first + 1; end < pages.size() && pages[first].data() + bytes == pages[end].data();
       ++end) {
    bytes += pages[end].size();
  }
  return bytes;
}

}  // namespace

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

std::span<std::byte> StagedWindow::page(int32_t layer, int32_t page) const {
  const int64_t bytes = shape_.page_bytes_of(layer);
  return {base_ + layer * shape_.layer_bytes() + page * bytes, static_cast<size_t>(bytes)};
}

int64_t StagedWindow::ReservedBytes() const {
  return run_.units * static_cast<int64_t>(RunPool::kUnitBytes);
}

absl::Status StagedWindow::StartDownload(kernels::CopyQueue& copies,
                                         int32_t layer,
                                         int32_t page_begin,
                                         std::span<const std::span<const std::byte>> pages) const {
  for (size_t first = 0, end = 0; first < pages.size(); first = end) {
    const size_t bytes = BytesInOnePiece(pages, first, end);
    std::byte* const target = page(layer, page_begin + static_cast<int32_t>(first)).data();
    BATON_RETURN_IF_ERROR(copies.StartDownload(target, pages[first].data(), bytes));
  }
  return absl::OkStatus();
}

absl::Status StagedWindow::Read(int32_t layer, int64_t begin, std::span<std::byte> target) const {
  return landing_.Read(target, page(layer, 0).data() + begin);
}

void StagedWindow::AddMoves(int32_t layer,
                            std::span<const std::span<std::byte>> pages,
                            std::vector<kernels::CopyQueue::Piece>& moves) const {
  for (size_t first = 0, end = 0; first < pages.size(); first = end) {
    const size_t bytes = BytesInOnePiece(pages, first, end);
    moves.push_back({.target = pages[first].data(),
                     .source = page(layer, static_cast<int32_t>(first)).data(),
                     .bytes = bytes});
  }
}

}  // namespace baton::kv
