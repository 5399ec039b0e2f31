// Sequences in format `shadowkv` on the device, as large as a serving worker holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::kernels::cuda {

// Prompt sections, tails and empty caches of every (layer, row), one sequence behind the other.
// They hold what an encoder would have left of vectors spread evenly over about [-2, 2]: of each
// sequence its own, but for the codes of values and the static chunks' ids, of which all have
// copies. Values apart lie in pinned memory of the host.
class ShadowKvPool {
 public:
  // Waits for the queue.
  static absl::StatusOr<ShadowKvPool> Make(const DeviceQueue& queue, const ShadowKvLoad& load);

  const ShadowKvLoad& load() const { return load_; }
  // One sequence at load().position(), which names memory of the device.
  ShadowKvSequence sequence(int32_t layer, int32_t row) const;
  // On the device, [rows] of a layer.
  const ShadowKvSequence* sequences(int32_t layer) const {
    return sequences_ + int64_t{layer} * load_.rows;
  }
  // What attention over them has added up, on the device, [rows] of a layer.
  const ShadowKvCounters* counters(int32_t layer) const {
    return counters_ + int64_t{layer} * load_.rows;
  }
  const std::byte* prompt(int32_t layer, int32_t row) const;
  const std::byte* tail(int32_t layer, int32_t row) const;
  const ShadowKvRope& rope() const { return rope_; }  // on the device
  // Of every sequence, [kv_heads][static chunks], ascending; on the host.
  const std::vector<int32_t>& static_ids() const { return static_ids_; }

 private:
  absl::Status Allocate();
  absl::Status FillExact(const DeviceQueue& queue) const;
  absl::Status CopyCodes(const DeviceQueue& queue);
  // Copies [bytes] of the device to what is at `begin` of each sequence's `stride` bytes.
  absl::Status CopyToAll(const DeviceQueue& queue,
                         const std::vector<std::byte>& source,
                         std::byte* begin,
                         size_t stride);

  int64_t index(int32_t layer, int32_t row) const { return int64_t{layer} * load_.rows + row; }

  ShadowKvLoad load_;
  DeviceArena arena_;
  std::byte* prompts_ = nullptr;  // [layers][rows]
  std::byte* tails_ = nullptr;    // [layers][rows]
  std::byte* caches_ = nullptr;   // [layers][rows]
  Memory prompt_values_;          // [layers][rows], like the next one
  Memory tail_values_;
  const ShadowKvPromptLayout* layout_ = nullptr;
  const ShadowKvSequence* sequences_ = nullptr;
  ShadowKvCounters* counters_ = nullptr;  // [layers][rows]
  ShadowKvRope rope_;
  std::vector<int32_t> static_ids_;
};

}  // namespace baton::kernels::cuda
