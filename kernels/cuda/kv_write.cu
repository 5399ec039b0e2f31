#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/check_pages.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/sequence_search.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kWarp = 32;
constexpr int32_t kThreads = 256;
constexpr int32_t kBlocksPerMultiprocessor = 6;

absl::Status Check(const KvWriteParams& params) {
  ParamChecker check("kv_write");
  check.NotNegative("num_sequences", params.num_sequences);
  if (!check.ok() || params.num_sequences == 0) {
    return check.status();
  }
  const DensePageLayout& layout = params.pages.layout;
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  CheckPages(params.pages, check);
  check.NotNull("sequences", params.sequences)
      .NotNull("positions", params.positions)
      .NotNull("k", params.k)
      .NotNull("v", params.v)
      .AtLeast("k_stride", params.k_stride, width)
      .AtLeast("v_stride", params.v_stride, width);
  if (check.ok() && layout.dtype == DType::kF32) {
    const std::string_view name = DTypeName(layout.dtype);
    return absl::UnimplementedError(absl::StrCat("kv_write: pages.layout.dtype is ",
                                                 absl::string_view(name.data(), name.size()),
                                                 "; the CUDA back end has bf16 and f8e4m3"));
  }
  return check.status();
}

// Copies source[n] by the threads of one threadIdx.y; kWidth is that of LoadBf16.
template <int kWidth>
__device__ void CopyHead(const uint16_t* source, int32_t n, uint16_t* target) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kWidth; i < n; i += blockDim.x * kWidth) {
    if constexpr (kWidth == 1) {
      target[i] = source[i];
    } else {
      *reinterpret_cast<uint4*>(target + i) = *reinterpret_cast<const uint4*>(source + i);
    }
  }
}

// EncodeFp8 by the threads of one threadIdx.y, for whole warps; with n of 0 nothing is written.
template <int kWidth>
__device__ void EncodeHead(const uint16_t* source, int32_t n, uint8_t* codes, std::byte* scale) {
  const auto first = static_cast<int32_t>(threadIdx.x) * kWidth;
  const auto step = static_cast<int32_t>(blockDim.x) * kWidth;
  float x[kWidth];
  uint32_t largest = 0;
  for (int32_t i = first; i < n; i += step) {
    LoadBf16(source + i, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
    }
  }
  for (uint32_t offset = blockDim.x / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, static_cast<int>(offset)));
  }
  const float divisor = Fp8Scale(largest);
  for (int32_t i = first; i < n; i += step) {
    LoadBf16(source + i, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[j] = divisor > 0.0f ? x[j] / divisor : 0.0f;
    }
    StoreF8(codes + i, x);
  }
  if (n > 0 && threadIdx.x == 0) {
    *reinterpret_cast<float*>(scale) = divisor;
  }
}

// Writes a row to its slot: the threads of one threadIdx.y take one head's keys or values at a
// time.
template <DType kDType, int kWidth>
__device__ void WriteRow(const KvWriteParams& params, int64_t row, std::byte* page, int32_t slot) {
  const DensePageLayout& layout = params.pages.layout;
  const auto* k = static_cast<const uint16_t*>(params.k) + row * params.k_stride;
  const auto* v = static_cast<const uint16_t*>(params.v) + row * params.v_stride;
  const int32_t parts = 2 * layout.kv_heads;
  for (int32_t first = 0; first < parts; first += static_cast<int32_t>(blockDim.y)) {
    const int32_t part = first + static_cast<int32_t>(threadIdx.y);
    const bool is_key = part < layout.kv_heads;
    const int32_t head = is_key ? part : part - layout.kv_heads;
    const uint16_t* source = (is_key ? k : v) + int64_t{head} * layout.head_dim;
    const int32_t n = part < parts ? layout.head_dim : 0;
    std::byte* target =
        page + (is_key ? layout.key_offset(head, slot) : layout.value_offset(head, slot));
    if constexpr (kDType == DType::kF8E4M3) {
      std::byte* scale = page + (is_key ? layout.key_scale_offset(head, slot)
                                        : layout.value_scale_offset(head, slot));
      EncodeHead<kWidth>(source, n, reinterpret_cast<uint8_t*>(target), scale);
    } else {
      CopyHead<kWidth>(source, n, reinterpret_cast<uint16_t*>(target));
    }
  }
}

// Sets `count` elements from `target` on to zero by the threads of one threadIdx.y.
template <int kWidth, typename T>
__device__ void ZeroElements(T* target, int32_t count) {
  using Vector = std::conditional_t<sizeof(T) == sizeof(uint16_t), uint4, uint2>;
  static_assert(kWidth == 1 || sizeof(Vector) == kWidth * sizeof(T));
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kWidth; i < count;
       i += static_cast<int32_t>(blockDim.x) * kWidth) {
    if constexpr (kWidth == 1) {
      target[i] = 0;
    } else {
      *reinterpret_cast<Vector*>(target + i) = Vector{};
    }
  }
}

// Sets slots [first_slot, page_tokens) of a page to zero: the threads of one threadIdx.y take one
// head's keys or values at a time.
template <DType kDType, int kWidth>
__device__ void ZeroSlots(const DensePageLayout& layout, std::byte* page, int32_t first_slot) {
  using Element = std::conditional_t<kDType == DType::kF8E4M3, uint8_t, uint16_t>;
  const int32_t slots = layout.page_tokens - first_slot;
  for (auto part = static_cast<int32_t>(threadIdx.y); slots > 0 && part < 2 * layout.kv_heads;
       part += static_cast<int32_t>(blockDim.y)) {
    const bool is_key = part < layout.kv_heads;
    const int32_t head = is_key ? part : part - layout.kv_heads;
    std::byte* target = page + (is_key ? layout.key_offset(head, first_slot)
                                       : layout.value_offset(head, first_slot));
    ZeroElements<kWidth>(reinterpret_cast<Element*>(target), slots * layout.head_dim);
    if constexpr (kDType == DType::kF8E4M3) {
      std::byte* scales = page + (is_key ? layout.key_scale_offset(head, first_slot)
                                         : layout.value_scale_offset(head, first_slot));
      ZeroElements<1>(reinterpret_cast<uint32_t*>(scales), slots);
    }
  }
}

// Blocks take rows in turn until they are past the last sequence's, as only the device knows how
// many there are; the sequences' rows ascend without overlap. Nothing but the row decides a block's
// way, so that its warps stay whole.
template <DType kDType, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    KvWriteKernel(const KvWriteParams params) {
  LaunchDependents();
  const DensePageLayout& layout = params.pages.layout;
  for (int64_t row = blockIdx.x;; row += gridDim.x) {
    const int64_t index = SequenceOfRow(params.sequences, params.num_sequences, row);
    if (index < 0) {
      continue;
    }
    const SequenceRows sequence = params.sequences[index];
    if (row >= int64_t{sequence.row_begin} + sequence.row_count) {
      if (index == params.num_sequences - 1) {
        return;
      }
      continue;
    }
    const int32_t position = params.positions[row];
    const int32_t slot = position % layout.page_tokens;
    const int32_t page_id = sequence.page_table[position / layout.page_tokens];
    std::byte* page = params.pages.base + static_cast<size_t>(page_id) * layout.stride_bytes();
    WriteRow<kDType, kWidth>(params, row, page, slot);
    const bool is_last = row + 1 == int64_t{sequence.row_begin} + sequence.row_count;
    if (is_last && slot < sequence.row_count) {  // the call has begun the page
      ZeroSlots<kDType, kWidth>(layout, page, slot + 1);
    }
  }
}

template <DType kDType, int kWidth>
void Launch(const DeviceQueue& queue, const KvWriteParams& params) {
  const DensePageLayout& layout = params.pages.layout;
  const int32_t vectors = (layout.head_dim + kWidth - 1) / kWidth;
  const auto lanes =
      std::min<int32_t>(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(vectors))), kWarp);
  const int32_t warp_parts = kWarp / lanes;
  const int32_t warps = (2 * layout.kv_heads + warp_parts - 1) / warp_parts;
  const int32_t block_parts = std::min(warps, kThreads / kWarp) * warp_parts;
  const dim3 block(static_cast<uint32_t>(lanes), static_cast<uint32_t>(block_parts));
  const int64_t most = int64_t{queue.multiprocessors()} * kBlocksPerMultiprocessor;
  const auto blocks = static_cast<uint32_t>(params.rows > 0 ? std::min(params.rows, most) : most);
  KvWriteKernel<kDType, kWidth><<<blocks, block, 0, queue.stream()>>>(params);
}

}  // namespace

absl::Status KvWrite(const ExecContext& context, const KvWriteParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.num_sequences == 0) {
    return status;
  }
  const bool vectors = FitsVectors(
      {params.k, params.v}, {params.k_stride, params.v_stride, params.pages.layout.head_dim});
  if (params.pages.layout.has_scales()) {
    vectors ? Launch<DType::kF8E4M3, kVectorWidth>(*context.queue, params)
            : Launch<DType::kF8E4M3, 1>(*context.queue, params);
  } else {
    vectors ? Launch<DType::kBF16, kVectorWidth>(*context.queue, params)
            : Launch<DType::kBF16, 1>(*context.queue, params);
  }
  return ToStatus(cudaGetLastError(), "kv_write");
}

}  // namespace baton::kernels::cuda
