// The newest token of each sequence, and now and then a block of 64 coded ones.
//
// A step of n sequences finds n / 64 of them with a block due, on average; the host does not know
// which. So every block of the launch writes its rows, then looks at all sequences (two dependent
// loads for each of its threads) and takes its share of the due ones' work, in pieces of some
// microseconds: 16 rows of the basis, some units of tokens, or a head's clusters.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_assign.cuh"
#include "kernels/cuda/shadowkv_coding.cuh"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_strip.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kProjectThreads && kThreads == kAssignThreads);
constexpr int kWarps = kThreads / 32;
constexpr int32_t kBlockTokens = static_cast<int32_t>(kShadowKvBlockTokens);

union AppendShared {
  ProjectionShared<kStripRanks> projection;
  AssignShared assign;
};

// One row's key or value as activations, to memory of `dtype`; by all threads of the block.
template <int kWidth>
__device__ void StoreRow(const uint16_t* source, int64_t count, DType dtype, std::byte* target) {
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < count; i += kThreads * kWidth) {
    float x[kWidth];
    LoadBf16(source + i, x);
    if (dtype == DType::kF32) {
      StoreF32(reinterpret_cast<float*>(target) + i, x);
    } else {
      StoreBf16(reinterpret_cast<uint16_t*>(target) + i, x);
    }
  }
}

// The heads of a slot lie side by side.
__device__ void WriteToken(const ShadowKvAppendParams& params,
                           const ShadowKvSequence& sequence,
                           bool vectors) {
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  const auto store = [&](const void* source, int64_t stride, size_t at) {
    const auto* elements = static_cast<const uint16_t*>(source) + sequence.row * stride;
    if (vectors) {
      StoreRow<kVectorWidth>(elements, config.width(), config.dtype, sequence.tail + at);
    } else {
      StoreRow<1>(elements, config.width(), config.dtype, sequence.tail + at);
    }
  };
  store(params.k, params.k_stride, tail.exact_key(sequence.position, 0));
  store(params.v, params.v_stride, tail.exact_value(sequence.position, 0));
}

__device__ std::optional<int64_t> BlockDue(const ShadowKvSequence& sequence) {
  return ShadowKvTailLayout(*sequence.layout, sequence.max_generated).BlockDueAt(sequence.position);
}

// The coding of one sequence's block, in pieces. The newest token is none of the block's: at least
// 64 exact ones are between.
class DueBlock {
 public:
  __device__ DueBlock(const ShadowKvAppendParams& params, const ShadowKvSequence& sequence)
      : params_(params),
        sequence_(sequence),
        layout_(*sequence.layout),
        config_(layout_.config),
        tail_(layout_, sequence.max_generated),
        first_(tail_.CodedTokensAt(sequence.position)),
        block_((first_ - layout_.coded.tokens) / kShadowKvBlockTokens),
        section_(sequence.tail + tail_.block_begin(block_)),
        tokens_(sequence, tail_, first_) {
    rank_pieces_ = config_.joint ? 0 : (config_.rank + kStripRanks - 1) / kStripRanks;
    const int32_t head_threads = kBlockTokens / kUnitTokens * VectorLanes(config_.head_dim);
    head_pieces_ = (head_threads + kThreads - 1) / kThreads;
    cluster_pieces_ = config_.value_clusters > 0 ? config_.kv_heads : 0;
  }

  __device__ int32_t pieces() const {
    return rank_pieces_ + config_.kv_heads * head_pieces_ + cluster_pieces_;
  }

  // By all threads of the block.
  __device__ void Code(int32_t piece, AppendShared& shared) const {
    if (piece < rank_pieces_) return Project(piece * kStripRanks, shared.projection);
    piece -= rank_pieces_;
    if (piece < config_.kv_heads * head_pieces_) {
      return CodeTokens(piece / head_pieces_, piece % head_pieces_);
    }
    AssignHead(piece - config_.kv_heads * head_pieces_, shared.assign);
  }

 private:
  __device__ void Project(int32_t first_rank, ProjectionShared<kStripRanks>& shared) const {
    const ProjectionGroup group = {.config = &config_,
                                   .rope = params_.rope,
                                   .position = first_,
                                   .tokens = kBlockTokens,
                                   .layers = 1};
    WriteStrip(
        group,
        {.section = section_ + tail_.block.coefficients, .tokens = kBlockTokens, .group = 0},
        first_rank,
        [&](int64_t) -> ProjectedLayer {
          return {.basis = sequence_.prompt + layout_.basis, .key_bias = params_.key_bias};
        },
        [&](int64_t, int32_t token) { return tokens_.Keys(token); },
        shared);
  }

  __device__ void CodeTokens(int32_t head, int32_t piece) const {
    const CodedTarget target = {
        .config = &config_,
        .layout = &tail_.block,
        .section = section_,
        .value_section = config_.values_apart
                             ? sequence_.value_tail + tail_.value_block_begin(block_)
                             : section_,
        .chunk_scores = nullptr};
    const int32_t thread = piece * kThreads + static_cast<int32_t>(threadIdx.x);
    const CodingUnit unit(target, head, thread / VectorLanes(config_.head_dim));
    CodeUnitOfAnyChunk(target, unit, tokens_);
  }

  __device__ void AssignHead(int32_t head, AssignShared& shared) const {
    const std::byte* means =
        sequence_.prompt + layout_.cluster_values +
        static_cast<size_t>(head) * config_.value_clusters * config_.vector_bytes();
    auto* ids = reinterpret_cast<uint8_t*>(section_ + tail_.block.cluster_ids) +
                head * kShadowKvBlockTokens;
    for (int32_t first = 0; first < kBlockTokens; first += kAssignTokens) {
      AssignTokens(
          {.head_dim = config_.head_dim,
           .clusters = config_.value_clusters,
           .tokens = kAssignTokens,
           .dtype = config_.dtype},
          [&](int32_t token) { return tokens_.Values(first + token).head(head); },
          [&](int32_t cluster, int32_t element) {
            return LoadElement(means, config_.dtype, int64_t{cluster} * config_.head_dim + element);
          },
          ids + first,
          shared);
    }
    __syncthreads();
  }

  const ShadowKvAppendParams& params_;
  const ShadowKvSequence& sequence_;
  const ShadowKvPromptLayout& layout_;
  const ShadowKvConfig& config_;
  ShadowKvTailLayout tail_;
  int64_t first_;  // position of the block's first token
  int64_t block_;  // of the tail
  std::byte* section_;
  ExactTokens tokens_;
  int32_t rank_pieces_;
  int32_t head_pieces_;  // for each head
  int32_t cluster_pieces_;
};

// Codes the block's share of the pieces of the due sequences among kThreads of them. `before`
// pieces were dealt out to the blocks in turn; returns how many are now. All threads of the block
// call it.
__device__ int64_t CodeDue(const ShadowKvAppendParams& params,
                           int64_t first,
                           int64_t before,
                           AppendShared& shared) {
  __shared__ uint32_t due[kWarps];  // a bit for each sequence
  const int64_t candidate = first + threadIdx.x;
  const bool mine =
      candidate < params.num_sequences && BlockDue(params.sequences[candidate]).has_value();
  const uint32_t bits = __ballot_sync(kAllLanes, mine);
  __syncthreads();  // the bits before were read
  if (threadIdx.x % 32 == 0) due[threadIdx.x / 32] = bits;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    for (uint32_t left = due[warp]; left != 0; left &= left - 1) {
      const int64_t index = first + 32 * warp + __ffs(static_cast<int>(left)) - 1;
      const DueBlock block(params, params.sequences[index]);
      const int32_t pieces = block.pieces();
      // The first piece that is this block's turn, from the last block on: the first ones have rows
      // to write.
      const int64_t place = gridDim.x - 1 - blockIdx.x;
      const int64_t turn = (place + gridDim.x - before % gridDim.x) % gridDim.x;
      for (int64_t piece = turn; piece < pieces; piece += gridDim.x) {
        block.Code(static_cast<int32_t>(piece), shared);
      }
      before += pieces;
    }
  }
  return before;
}

__global__ void __launch_bounds__(kThreads, 1)
    AppendKernel(const __grid_constant__ ShadowKvAppendParams params, bool vectors) {
  __shared__ AppendShared shared;
  LaunchDependents();
  for (int64_t index = blockIdx.x; index < params.num_sequences; index += gridDim.x) {
    WriteToken(params, params.sequences[index], vectors);
  }
  int64_t pieces = 0;
  for (int64_t first = 0; first < params.num_sequences; first += kThreads) {
    pieces = CodeDue(params, first, pieces, shared);
  }
}

absl::Status Check(const ShadowKvAppendParams& params) {
  ParamChecker check("shadowkv_append");
  check.NotNegative("num_sequences", params.num_sequences);
  if (!check.ok() || params.num_sequences == 0) {
    return check.status();
  }
  check.NotNull("sequences", params.sequences)
      .NotNull("k", params.k)
      .NotNull("v", params.v)
      .Positive("k_stride", params.k_stride)
      .Positive("v_stride", params.v_stride);
  CheckRopeTables(params.rope, check);
  return check.status();
}

}  // namespace
}  // namespace shadowkv

absl::Status ShadowKvAppend(const ExecContext& context, const ShadowKvAppendParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok() || params.num_sequences == 0) {
    return status;
  }
  const bool vectors = FitsVectors({params.k, params.v}, {params.k_stride, params.v_stride});
  // One for each multiprocessor.
  const int32_t blocks = context.queue->multiprocessors();
  shadowkv::AppendKernel<<<static_cast<uint32_t>(blocks),
                           shadowkv::kThreads,
                           0,
                           context.queue->stream()>>>(params, vectors);
  return ToStatus(cudaGetLastError(), "shadowkv_append");
}

}  // namespace baton::kernels::cuda
