// Coded rows of wire form `hidden` on the device: what hidden_encode and hidden_decode share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {

// Coded rows are accessed by the element.
inline absl::Status CheckCoded(absl::string_view op,
                               const std::byte* coded,
                               const HiddenRowLayout& layout) {
  ParamChecker check(op);
  const auto misaligned =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(coded) % DTypeBytes(layout.dtype));
  check.Require(misaligned == 0, "coded modulo an element's bytes", misaligned, "must be 0");
  return check.status();
}

// Whether every row's elements, eight at a time, are aligned to their size, 16 bytes at most.
inline bool RowsFitVectors(const std::byte* coded, const HiddenRowLayout& layout) {
  const size_t vector_bytes = layout.dtype == DType::kF8E4M3 ? 8 : 16;
  return layout.width % kVectorWidth == 0 && layout.row_bytes() % vector_bytes == 0 &&
         reinterpret_cast<uintptr_t>(coded) % vector_bytes == 0;
}

// Threads that share a group of channels.
inline constexpr int kGroupLanes = HiddenRowLayout::kGroup / kVectorWidth;

// The kernels of an op on coded rows, one for each dtype, on vectors and on single elements.
template <typename Params>
struct HiddenKernels {
  using Kernel = void (*)(Params params, uint32_t pieces);
  struct Widths {
    Kernel vectors;
    Kernel elements;
  };

  Widths bf16;
  Widths f32;
  Widths f8;
};

// Launches the kernel of the rows' dtype; `vectors`: all rows can be worked on in vectors.
template <typename Params>
void LaunchHidden(const HiddenKernels<Params>& kernels,
                  const Params& params,
                  bool vectors,
                  cudaStream_t stream) {
  const HiddenRowLayout& layout = params.layout;
  const int64_t units = vectors ? layout.width / kVectorWidth : layout.width;
  const auto launch = [&](const typename HiddenKernels<Params>::Widths& widths,
                          const RowGrid& grid) {
    const auto kernel = vectors ? widths.vectors : widths.elements;
    kernel<<<grid.blocks, grid.threads, 0, stream>>>(params, grid.pieces);
  };
  switch (layout.dtype) {
    case DType::kF8E4M3:
      return launch(kernels.f8, RowGrid(params.rows, int64_t{layout.groups()} * kGroupLanes));
    case DType::kF32:
      return launch(kernels.f32, RowGrid(params.rows, units));
    default:
      return launch(kernels.bf16, CopyGrid(params.rows, units));
  }
}

// A thread's eight channels of a group: one vector, or eight single ones.
template <int kWidth>
struct GroupShare {
  static constexpr int kAccesses = kVectorWidth / kWidth;

  int64_t group;
  int lane;
  int64_t width;

  // `unit` counts the threads of a row.
  __device__ GroupShare(int64_t unit, int64_t row_width)
      : group(unit / kGroupLanes), lane(static_cast<int>(unit % kGroupLanes)), width(row_width) {}
  __device__ int64_t Channel(int access) const {
    return group * HiddenRowLayout::kGroup + (access * kGroupLanes + lane) * kWidth;
  }
  __device__ bool Has(int access) const { return Channel(access) < width; }
};

// The fp16 scale of a group. Rows of odd widths may lie at odd addresses.
__device__ inline void StoreScale(uint8_t* scales, int64_t group, uint16_t bits) {
  scales[2 * group] = static_cast<uint8_t>(bits);
  scales[2 * group + 1] = static_cast<uint8_t>(bits >> 8);
}

__device__ inline uint16_t LoadScale(const uint8_t* scales, int64_t group) {
  return static_cast<uint16_t>(scales[2 * group] | scales[2 * group + 1] << 8);
}

}  // namespace baton::kernels::cuda
