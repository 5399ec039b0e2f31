// Memory for a prompt that is handed off from or to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/landing_memory.h"

namespace baton::kv {

// What is sent of a prompt: layers with as many pages each and, behind them, the pages of hidden
// states, which count as one layer more.
struct StagedShape {
  int32_t layers = 0;
  WindowShape window;  // of each layer
  int32_t hidden_pages = 0;
  int64_t hidden_page_bytes = 0;

  int64_t layer_bytes() const { return int64_t{window.pages_per_layer} * window.page_bytes; }
  int64_t bytes() const {
    return int64_t{layers} * layer_bytes() + int64_t{hidden_pages} * hidden_page_bytes;
  }
  // Pages of a layer, and bytes of each; `layer` from 0 to `layers`.
  int32_t pages_of(int32_t layer) const {
    return layer < layers ? window.pages_per_layer : hidden_pages;
  }
  int64_t page_bytes_of(int32_t layer) const {
    return layer < layers ? window.page_bytes : hidden_page_bytes;
  }
};

// Bytes of a layer's pages, from byte `begin` of the first one on, that are wanted on the host.
struct SectionRead {
  int32_t layer = 0;
  size_t begin = 0;
  std::span<std::byte> target;
};

// The pages of a prompt are copied here, memory of the host, before they are sent, or land here,
// memory of the device, before they are moved to pages, which steps of other requests may be at
// work on when they come. They lie in window order, layer by layer, without gaps. Made and
// destroyed by the engine thread; copies are the executor's.
class StagedWindow {
 public:
  // Null when `pool` has no such room now. `landing` is of its memory, and outlives the window.
  static std::unique_ptr<StagedWindow> Take(const std::shared_ptr<RunPool>& pool,
                                            kernels::LandingMemory& landing,
                                            const StagedShape& shape);
  ~StagedWindow();
  StagedWindow(const StagedWindow&) = delete;
  StagedWindow& operator=(const StagedWindow&) = delete;

  // All pages.
  std::span<std::byte> memory() const { return {base_, static_cast<size_t>(shape_.bytes())}; }
  // Pages [begin, begin + count) of a layer.
  std::span<std::byte> pages(int32_t layer, int32_t begin, int32_t count) const;
  int64_t ReservedBytes() const;

  // Copies to the host what has landed.
  absl::Status Read(std::span<const SectionRead> reads) const;
  // Adds what brings pages of a layer, from `page_begin` on, to `targets`, memory of the device in
  // pieces.
  void AddMoves(int32_t layer,
                int32_t page_begin,
                std::span<const std::span<std::byte>> targets,
                std::vector<kernels::CopyQueue::Piece>& moves) const;

 private:
  StagedWindow(std::shared_ptr<RunPool> pool,
               kernels::LandingMemory& landing,
               RunPool::Run run,
               const StagedShape& shape);

  const std::shared_ptr<RunPool> pool_;
  kernels::LandingMemory& landing_;
  const RunPool::Run run_;
  const StagedShape shape_;
  std::byte* const base_;
};

}  // namespace baton::kv
