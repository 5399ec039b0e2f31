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
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

// `params` has tokens.
absl::Status Check(const Fp8EncodeParams& params) {
  const DensePageLayout& source = params.source.layout;
  const DensePageLayout& target = params.pages.layout;
  ParamChecker check("fp8_encode");
  CheckPages(params.pages, check);
  CheckPages(params.source, check);
  check.NotNull("source_table", params.source_table)
      .NotNull("page_table", params.page_table)
      .Require(target.has_scales(),
               "pages.layout.dtype",
               static_cast<int64_t>(target.dtype),
               "must be f8e4m3")
      .Require(source.kv_heads == target.kv_heads,
               "source.layout.kv_heads",
               source.kv_heads,
               "must be pages.layout.kv_heads")
      .Require(source.head_dim == target.head_dim,
               "source.layout.head_dim",
               source.head_dim,
               "must be pages.layout.head_dim");
  if (check.ok() && source.dtype != DType::kBF16) {
    const std::string_view name = DTypeName(source.dtype);
    return absl::UnimplementedError(absl::StrCat("fp8_encode: source.layout.dtype is ",
                                                 absl::string_view(name.data(), name.size()),
                                                 "; the CUDA back end has bf16"));
  }
  return check.status();
}

__device__ std::byte* PageOf(const DensePages& pages, const int32_t* table, int32_t token) {
  return pages.base +
         static_cast<size_t>(table[token / pages.layout.page_tokens]) * pages.layout.stride_bytes();
}

// Blocks take tokens in turn. Nothing but the token decides a block's way, so that its warps stay
// whole.
template <int kWidth>
__global__ void __launch_bounds__(kTokenThreads, kTokenBlocksPerMultiprocessor)
    Fp8EncodeKernel(const __grid_constant__ Fp8EncodeParams params) {
  const DensePageLayout& from = params.source.layout;
  const DensePageLayout& to = params.pages.layout;
  const auto end = static_cast<int32_t>(params.tokens);
  const auto begin = static_cast<int32_t>(params.first_token);
  const int32_t parts = 2 * to.kv_heads;
  for (auto token = static_cast<int32_t>(begin + blockIdx.x); token < end;
       token += static_cast<int32_t>(gridDim.x)) {
    const std::byte* source = PageOf(params.source, params.source_table, token);
    std::byte* target = PageOf(params.pages, params.page_table, token);
    const int32_t from_slot = token % from.page_tokens;
    const int32_t slot = token % to.page_tokens;
    for (int32_t first = 0; first < parts; first += static_cast<int32_t>(blockDim.y)) {
      const int32_t part = first + static_cast<int32_t>(threadIdx.y);
      const bool is_key = part < to.kv_heads;
      const int32_t head = is_key ? part : part - to.kv_heads;
      const std::byte* x =
          source + (is_key ? from.key_offset(head, from_slot) : from.value_offset(head, from_slot));
      std::byte* codes =
          target + (is_key ? to.key_offset(head, slot) : to.value_offset(head, slot));
      std::byte* scale =
          target + (is_key ? to.key_scale_offset(head, slot) : to.value_scale_offset(head, slot));
      EncodeHead<kWidth>(reinterpret_cast<const uint16_t*>(x),
                         part < parts ? to.head_dim : 0,
                         reinterpret_cast<uint8_t*>(codes),
                         scale);
    }
    if (token + 1 == end && slot < end - begin) {  // the call has begun the page
      ZeroSlots<DType::kF8E4M3, kWidth>(to, target, slot + 1);
    }
  }
}

}  // namespace

absl::Status Fp8Encode(const ExecContext& context, const Fp8EncodeParams& params) {
  ParamChecker check("fp8_encode");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token);
  if (!check.ok() || params.tokens == params.first_token) {
    return check.status();
  }
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  const int64_t most = int64_t{queue.multiprocessors()} * kTokenBlocksPerMultiprocessor;
  const auto blocks = static_cast<uint32_t>(std::min(params.tokens - params.first_token, most));
  const DensePageLayout& layout = params.pages.layout;
  if (layout.head_dim % kVectorWidth == 0) {
    const dim3 block = TokenBlock(layout, kVectorWidth);
    Fp8EncodeKernel<kVectorWidth><<<blocks, block, 0, queue.stream()>>>(params);
  } else {
    Fp8EncodeKernel<1><<<blocks, TokenBlock(layout, 1), 0, queue.stream()>>>(params);
  }
  return ToStatus(cudaGetLastError(), "fp8_encode");
}

}  // namespace baton::kernels::cuda
