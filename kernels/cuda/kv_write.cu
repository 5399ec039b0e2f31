#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/check_pages.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dense_page.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/sequence_search.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

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

// Blocks take rows in turn until they are past the last sequence's, as only the device knows how
// many there are; the sequences' rows ascend without overlap. Nothing but the row decides a block's
// way, so that its warps stay whole.
template <DType kDType, int kWidth>
__global__ void __launch_bounds__(kTokenThreads, kTokenBlocksPerMultiprocessor)
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
  const dim3 block = TokenBlock(params.pages.layout, kWidth);
  const int64_t most = int64_t{queue.multiprocessors()} * kTokenBlocksPerMultiprocessor;
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
