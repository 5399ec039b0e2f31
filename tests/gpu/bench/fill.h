// Synthetic contents of pools, made on the device: filling them from the host would take longer
// than measuring them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"

namespace baton::kernels::cuda {

// What a page of a synthetic pool holds.
struct DiffKvPageFill {
  int32_t tier = 0;
  int32_t tokens = 0;          // in the first slots; the others stay unused
  int32_t first_position = 0;  // of slot 0; the others' follow it
};

// Fills pages 0 .. count - 1 of a zeroed pool as an encoder would whose vectors are spread evenly
// over about [-2, 2]: random codes, scales and zeros of that range with some spread, scores of a
// prompt. fills[page] is on the device.
absl::Status FillDiffKvPages(const DeviceQueue& queue,
                             const DiffKvGeometry& geometry,
                             std::byte* pool,
                             const DiffKvPageFill* fills,
                             int64_t count,
                             uint32_t seed);

// Random f8e4m3 codes of magnitudes below 2 in pages 0 .. count - 1 of a pool, and scales of 1.
absl::Status FillFp8(const DeviceQueue& queue,
                     const DensePageLayout& layout,
                     std::byte* pool,
                     int64_t count,
                     uint32_t seed);

// bf16 values spread evenly over [-scale, scale].
absl::Status FillBf16(
    const DeviceQueue& queue, void* data, int64_t count, float scale, uint32_t seed);

}  // namespace baton::kernels::cuda
