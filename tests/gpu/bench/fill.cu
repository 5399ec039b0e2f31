#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/runtime/cuda_status.h"
#include "tests/gpu/bench/fill.h"

namespace baton::kernels::cuda {
namespace {

// A counter-based generator: the finaliser of MurmurHash3 (public domain) over seed and counter.
__device__ uint32_t Random(uint32_t seed, uint64_t counter) {
  uint64_t x = counter * 0x9e3779b97f4a7c15ull + seed;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x >> 32);
}
// In [0, 1).
__device__ float Uniform(uint32_t seed, uint64_t counter) {
  return static_cast<float>(Random(seed, counter) >> 8) * 0x1p-24f;
}

__device__ void FillRange(
    std::byte* ranges, int32_t slot, int32_t bits, uint32_t seed, uint64_t counter) {
  const float width = 3.0f + 2.0f * Uniform(seed, counter);
  reinterpret_cast<__half2*>(ranges)[slot] =
      __floats2half2_rn(width / static_cast<float>((1 << bits) - 1), -width / 2.0f);
}

// Random codes in every slot of a segment.
__device__ void FillCodes(std::byte* codes, int32_t words, uint32_t seed, uint64_t counter) {
  for (int32_t i = threadIdx.x; i < words; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(codes)[i] = Random(seed, counter + static_cast<uint64_t>(i));
  }
}

__device__ void ClearCode(std::byte* codes, size_t bit, int32_t bits) {
  const uint32_t mask = ((1u << bits) - 1u) << (bit % 32);
  atomicAnd(reinterpret_cast<uint32_t*>(codes) + bit / 32, ~mask);
}

// Zeroes the codes of the slots from `tokens` on.
__device__ void ClearUnused(const DiffKvPageLayout& layout, std::byte* page, int32_t tokens) {
  const int32_t unused = (layout.page_tokens() - tokens) * layout.head_dim;
  for (int32_t i = threadIdx.x; i < unused; i += blockDim.x) {
    const int32_t slot = tokens + i / layout.head_dim;
    const int32_t dim = i % layout.head_dim;
    ClearCode(page + layout.key_codes(), layout.key_bit(slot, dim), layout.tier.key_bits);
    ClearCode(page + layout.value_codes(), layout.value_bit(slot, dim), layout.tier.value_bits);
  }
}

// A block for each page.
__global__ void FillPagesKernel(DiffKvGeometry geometry,
                                std::byte* pool,
                                const DiffKvPageFill* fills,
                                uint32_t seed) {
  const int64_t id = blockIdx.x;
  const DiffKvPageFill fill = fills[id];
  const DiffKvPageLayout layout = geometry.layout(fill.tier);
  const int32_t elements = layout.page_tokens() * layout.head_dim;
  std::byte* page = pool + static_cast<size_t>(id) * geometry.page_bytes();
  const uint64_t first = static_cast<uint64_t>(id) * geometry.page_bytes();
  FillCodes(page + layout.key_codes(), elements * layout.tier.key_bits / 32, seed, first);
  FillCodes(page + layout.value_codes(),
            elements * layout.tier.value_bits / 32,
            seed,
            first + layout.value_codes());
  __syncthreads();
  ClearUnused(layout, page, fill.tokens);
  for (int32_t slot = threadIdx.x; slot < fill.tokens; slot += blockDim.x) {
    const auto counter = static_cast<uint64_t>(id * 1024 + slot);
    FillRange(page + layout.key_scales(), slot, layout.tier.key_bits, seed + 1, counter);
    FillRange(page + layout.value_scales(), slot, layout.tier.value_bits, seed + 2, counter);
    reinterpret_cast<float*>(page + layout.scores())[slot] = Uniform(seed + 3, counter);
    reinterpret_cast<int32_t*>(page + layout.positions())[slot] = fill.first_position + slot;
  }
}

// A block for each page. Codes without the upper bit of the exponent are below 2, and none is NaN.
__global__ void FillFp8Kernel(DensePageLayout layout, std::byte* pool, uint32_t seed) {
  std::byte* page = pool + static_cast<size_t>(blockIdx.x) * layout.stride_bytes();
  const auto words = static_cast<int32_t>(layout.key_scale_offset(0, 0) / sizeof(uint32_t));
  const uint64_t first = uint64_t{blockIdx.x} * layout.stride_bytes();
  for (int32_t i = threadIdx.x; i < words; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(page)[i] =
        Random(seed, first + static_cast<uint64_t>(i)) & 0xbfbfbfbfu;
  }
  auto* scales = reinterpret_cast<float*>(page + layout.key_scale_offset(0, 0));
  for (int32_t i = threadIdx.x; i < 2 * layout.kv_heads * layout.page_tokens; i += blockDim.x) {
    scales[i] = 1.0f;
  }
}

__global__ void FillBf16Kernel(__nv_bfloat16* data, int64_t count, float scale, uint32_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    data[i] = __float2bfloat16(scale * (2.0f * Uniform(seed, static_cast<uint64_t>(i)) - 1.0f));
  }
}

}  // namespace

absl::Status FillDiffKvPages(const DeviceQueue& queue,
                             const DiffKvGeometry& geometry,
                             std::byte* pool,
                             const DiffKvPageFill* fills,
                             int64_t count,
                             uint32_t seed) {
  FillPagesKernel<<<static_cast<uint32_t>(count), 256, 0, queue.stream()>>>(
      geometry, pool, fills, seed);
  return ToStatus(cudaGetLastError(), "fill pages");
}

absl::Status FillFp8(const DeviceQueue& queue,
                     const DensePageLayout& layout,
                     std::byte* pool,
                     int64_t count,
                     uint32_t seed) {
  FillFp8Kernel<<<static_cast<uint32_t>(count), 256, 0, queue.stream()>>>(layout, pool, seed);
  return ToStatus(cudaGetLastError(), "fill fp8");
}

absl::Status FillBf16(
    const DeviceQueue& queue, void* data, int64_t count, float scale, uint32_t seed) {
  FillBf16Kernel<<<queue.multiprocessors() * 8, 256, 0, queue.stream()>>>(
      static_cast<__nv_bfloat16*>(data), count, scale, seed);
  return ToStatus(cudaGetLastError(), "fill bf16");
}

}  // namespace baton::kernels::cuda
