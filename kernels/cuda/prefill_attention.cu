// Prefill attention by cuDNN (cudnn/attention_graph.h). The sequences of a call go to it in runs of
// up to a bucket's batch: a small kernel writes down from SequenceRows, which only the device sees,
// where each begins, how long it is and which pages are its own. cuDNN reads keys and values from
// the pages where it can; else they are copied behind each other first, which is one more pass over
// the keys.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kThreads = 256;
// Rows of a sequence that are left to the kernel for decode rows, which reads keys once a row.
constexpr int32_t kMostDecodeRows = 16;
// Sizes of pages that cuDNN is known to take.
constexpr int32_t kLeastPageTokens = 16;
constexpr int32_t kMostPageTokens = 256;
// Elements of one 16-byte access.
constexpr int32_t kVector = 8;

// The sequences of one run of a plan, a slot for each and slots without rows behind them.
struct Slots {
  const SequenceRows* sequences = nullptr;  // [count]
  const int32_t* positions = nullptr;       // of the call's rows
  int32_t count = 0;
  int32_t batch = 0;  // slots
  // Elements from a row to the next, and from a slot's copied keys to the next slot's.
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int64_t lse_stride = 0;
  int64_t key_stride = 0;
  // The log-sum-exps of the run lie behind each other instead of at their rows.
  bool lse_is_packed = false;
  int32_t page_tokens = 0;
  int32_t pages = 0;  // of a slot in the table
  // Where a slot's rows begin, in elements, and at last where they end: [batch + 1].
  int64_t* query_offsets = nullptr;
  int64_t* out_offsets = nullptr;
  int64_t* lse_offsets = nullptr;
  int64_t* key_offsets = nullptr;
  int32_t* query_tokens = nullptr;  // [batch]
  int32_t* key_tokens = nullptr;    // [batch]
  int32_t* page_table = nullptr;    // [batch, pages]; null where keys are copied
};

__device__ SequenceRows SequenceOf(const Slots& slots, int32_t slot) {
  if (slot < slots.count) return slots.sequences[slot];
  const SequenceRows last = slots.sequences[slots.count - 1];
  return {.row_begin = last.row_begin + last.row_count};
}

// The keys that the last row sees.
__device__ int32_t KeysOf(const Slots& slots, const SequenceRows& sequence) {
  if (sequence.row_count == 0) return 0;
  return slots.positions[sequence.row_begin + sequence.row_count - 1] + 1;
}

// The rows of the slots before this one.
__device__ int32_t RowsBefore(const Slots& slots, int32_t slot) {
  int32_t rows = 0;
  for (int32_t i = 0; i < min(slot, slots.count); ++i) rows += slots.sequences[i].row_count;
  return rows;
}

// `slot` may be the end of all.
__device__ void WriteOffsets(const Slots& slots, int32_t slot, int64_t row) {
  slots.query_offsets[slot] = row * slots.q_stride;
  slots.out_offsets[slot] = row * slots.out_stride;
  slots.lse_offsets[slot] =
      (slots.lse_is_packed ? int64_t{RowsBefore(slots, slot)} : row) * slots.lse_stride;
  slots.key_offsets[slot] = min(slot, slots.count) * slots.key_stride;
}

// A slot's pages. Entries behind them repeat the last: a kernel that reads whole tiles touches no
// other sequence's keys.
__device__ void WritePages(const Slots& slots,
                           int32_t slot,
                           const int32_t* page_table,
                           int32_t keys) {
  const int32_t used = (keys + slots.page_tokens - 1) / slots.page_tokens;
  int32_t* target = slots.page_table + int64_t{slot} * slots.pages;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < slots.pages; i += kThreads) {
    target[i] = used > 0 ? page_table[min(i, used - 1)] : 0;
  }
}

// A block for each slot.
__global__ void __launch_bounds__(kThreads) DescribeSlots(const __grid_constant__ Slots slots) {
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const SequenceRows sequence = SequenceOf(slots, slot);
  const int32_t keys = KeysOf(slots, sequence);
  if (threadIdx.x == 0) {
    slots.query_tokens[slot] = sequence.row_count;
    slots.key_tokens[slot] = keys;
    WriteOffsets(slots, slot, sequence.row_begin);
    if (slot == slots.batch - 1) {
      WriteOffsets(slots, slots.batch, sequence.row_begin + sequence.row_count);
    }
  }
  if (slots.page_table != nullptr) WritePages(slots, slot, sequence.page_table, keys);
}

// Copies the keys and values of slot blockIdx.y from pages to [tokens, kv_heads, head_dim].
__global__ void __launch_bounds__(kThreads) CopyKeys(const __grid_constant__ Slots slots,
                                                     const __grid_constant__ DensePages pages,
                                                     uint16_t* keys,
                                                     uint16_t* values) {
  const DensePageLayout& layout = pages.layout;
  const SequenceRows sequence = slots.sequences[blockIdx.y];
  // At most 2^17 tokens of a few thousand vectors.
  const auto head_vectors = static_cast<uint32_t>(layout.head_dim / kVector);
  const uint32_t token_vectors = head_vectors * static_cast<uint32_t>(layout.kv_heads);
  const uint32_t vectors = static_cast<uint32_t>(KeysOf(slots, sequence)) * token_vectors;
  auto* key_target = reinterpret_cast<uint4*>(keys + blockIdx.y * slots.key_stride);
  auto* value_target = reinterpret_cast<uint4*>(values + blockIdx.y * slots.key_stride);
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < vectors; i += gridDim.x * kThreads) {
    const auto token = static_cast<int32_t>(i / token_vectors);
    const uint32_t of_token = i % token_vectors;
    const auto head = static_cast<int32_t>(of_token / head_vectors);
    const size_t of_head = of_token % head_vectors * sizeof(uint4);
    const int32_t page = token / layout.page_tokens;
    const int32_t slot = token - page * layout.page_tokens;
    const std::byte* source = pages.base + sequence.page_table[page] * layout.stride_bytes();
    key_target[i] =
        *reinterpret_cast<const uint4*>(source + layout.key_offset(head, slot) + of_head);
    value_target[i] =
        *reinterpret_cast<const uint4*>(source + layout.value_offset(head, slot) + of_head);
  }
}

// Hands out pieces of the workspace, aligned to 256 bytes.
class Scratch {
 public:
  explicit Scratch(const DeviceMemory& memory) : memory_(memory) {}

  // Null when there is not as much.
  template <typename T>
  T* Take(int64_t count) {
    const size_t begin = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return used_ <= memory_.size() ? reinterpret_cast<T*>(memory_.data() + begin) : nullptr;
  }
  size_t left() const { return used_ < memory_.size() ? memory_.size() - used_ : 0; }
  absl::Status Check() const {
    return used_ <= memory_.size()
               ? absl::OkStatus()
               : absl::ResourceExhaustedError(absl::StrCat("paged_attention: a workspace of ",
                                                           memory_.size(),
                                                           " bytes, but rows of prompts need ",
                                                           used_));
  }

 private:
  const DeviceMemory& memory_;
  size_t used_ = 0;
};

AttentionShape ShapeOf(const PagedAttentionParams& params) {
  const DensePageLayout& layout = params.pages.layout;
  const AttentionBucket bucket =
      *BucketFor(params.num_sequences, params.max_sequence_rows, params.max_keys);
  AttentionShape shape = {.batch = bucket.batch,
                          .heads = params.heads,
                          .kv_heads = layout.kv_heads,
                          .head_dim = layout.head_dim,
                          .queries = bucket.queries,
                          .keys = AttentionBucket::kMostTokens,
                          .mask = AttentionMask::kCausalBottomRight,
                          .ragged = true,
                          .q_stride = params.q_stride,
                          .out_stride = params.out_stride};
  if (std::has_single_bit(static_cast<uint32_t>(layout.page_tokens)) &&
      layout.page_tokens >= kLeastPageTokens && layout.page_tokens <= kMostPageTokens) {
    shape.page_tokens = layout.page_tokens;
    shape.page_stride = static_cast<int64_t>(layout.stride_bytes() / sizeof(uint16_t));
  }
  return shape;
}

// Out of pages if that is possible, else over copies.
absl::StatusOr<const AttentionPlan*> ChoosePlan(AttentionPlans& plans, AttentionShape shape) {
  if (shape.page_tokens > 0) {
    absl::StatusOr<const AttentionPlan*> plan = plans.Find(shape);
    if (!absl::IsUnimplemented(plan.status())) return plan;
  }
  shape.page_tokens = 0;
  shape.page_stride = 0;
  return plans.Find(shape);
}

// One call.
class Prefill {
 public:
  Prefill(DeviceQueue& queue,
          const AttentionPlans& plans,
          const AttentionPlan& plan,
          const PagedAttentionParams& params)
      : queue_(queue), plans_(plans), plan_(plan), params_(params) {}

  absl::Status Run() {
    if (absl::Status status = TakeScratch(); !status.ok()) return status;
    for (int64_t first = 0; first < params_.num_sequences; first += run_sequences_) {
      slots_.sequences = params_.sequences + first;
      slots_.count = static_cast<int32_t>(std::min(run_sequences_, params_.num_sequences - first));
      absl::Status status = Describe();
      if (status.ok()) status = Attend();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  const AttentionShape& shape() const { return plan_.graph.shape(); }
  bool in_pages() const { return shape().page_tokens > 0; }

  absl::Status TakeScratch() {
    Scratch scratch(queue_.workspace());
    const int64_t batch = shape().batch;
    slots_ = {.positions = params_.positions,
              .batch = static_cast<int32_t>(batch),
              .q_stride = params_.q_stride,
              .out_stride = params_.out_stride,
              .lse_stride = params_.heads,
              .lse_is_packed = params_.lse == nullptr,
              .query_offsets = scratch.Take<int64_t>(batch + 1),
              .out_offsets = scratch.Take<int64_t>(batch + 1),
              .lse_offsets = scratch.Take<int64_t>(batch + 1),
              .key_offsets = scratch.Take<int64_t>(batch + 1),
              .query_tokens = scratch.Take<int32_t>(batch),
              .key_tokens = scratch.Take<int32_t>(batch)};
    lse_ = params_.lse != nullptr ? params_.lse : scratch.Take<float>(params_.rows * params_.heads);
    plan_scratch_ = scratch.Take<std::byte>(static_cast<int64_t>(plan_.scratch_bytes));
    run_sequences_ = batch;
    if (in_pages()) {
      slots_.page_tokens = static_cast<int32_t>(shape().page_tokens);
      slots_.pages = static_cast<int32_t>(shape().pages());
      slots_.page_table = scratch.Take<int32_t>(batch * slots_.pages);
    } else {
      TakeCopies(scratch);
    }
    return scratch.Check();
  }

  // Room for the keys and values of as many sequences as a run may have, at least of one.
  void TakeCopies(Scratch& scratch) {
    slots_.key_stride = int64_t{params_.max_keys} * shape().kv_heads * shape().head_dim;
    const int64_t bytes = 2 * slots_.key_stride * static_cast<int64_t>(sizeof(uint16_t));
    // Less what is lost to alignment.
    const int64_t left = std::max<int64_t>(static_cast<int64_t>(scratch.left()) - 512, 0);
    run_sequences_ = std::clamp<int64_t>(left / bytes, 1, shape().batch);
    keys_ = scratch.Take<uint16_t>(run_sequences_ * slots_.key_stride);
    values_ = scratch.Take<uint16_t>(run_sequences_ * slots_.key_stride);
  }

  absl::Status Describe() const {
    DescribeSlots<<<static_cast<unsigned>(slots_.batch), kThreads, 0, queue_.stream()>>>(slots_);
    if (!in_pages()) {
      const int64_t vectors = slots_.key_stride / kVector;
      const int64_t blocks = std::min<int64_t>((vectors + kThreads - 1) / kThreads,
                                               int64_t{queue_.multiprocessors()} * 8);
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slots_.count));
      CopyKeys<<<grid, kThreads, 0, queue_.stream()>>>(slots_, params_.pages, keys_, values_);
    }
    return ToStatus(cudaGetLastError(), "paged_attention");
  }

  absl::Status Attend() const {
    const float minus_infinity = -std::numeric_limits<float>::infinity();
    std::vector<AttentionArgument> arguments = {
        {AttentionTensor::kQuery, params_.q},
        {AttentionTensor::kOut, params_.out},
        {AttentionTensor::kLse, lse_},
        {AttentionTensor::kScale, &params_.scale},
        {AttentionTensor::kMinusInfinity, &minus_infinity},
        {AttentionTensor::kQueryOffsets, slots_.query_offsets},
        {AttentionTensor::kOutOffsets, slots_.out_offsets},
        {AttentionTensor::kLseOffsets, slots_.lse_offsets},
        {AttentionTensor::kQueryTokens, slots_.query_tokens},
        {AttentionTensor::kKeyTokens, slots_.key_tokens}};
    if (in_pages()) {
      const DensePages& pages = params_.pages;
      arguments.push_back({AttentionTensor::kKey, pages.base + pages.layout.key_offset(0, 0)});
      arguments.push_back({AttentionTensor::kValue, pages.base + pages.layout.value_offset(0, 0)});
      arguments.push_back({AttentionTensor::kPageTable, slots_.page_table});
    } else {
      arguments.push_back({AttentionTensor::kKey, keys_});
      arguments.push_back({AttentionTensor::kValue, values_});
      arguments.push_back({AttentionTensor::kKeyOffsets, slots_.key_offsets});
    }
    return plans_.Run(plan_, arguments, plan_scratch_);
  }

  const DeviceQueue& queue_;
  const AttentionPlans& plans_;
  const AttentionPlan& plan_;
  const PagedAttentionParams& params_;
  int64_t run_sequences_ = 0;  // of a run, at most
  Slots slots_;
  float* lse_ = nullptr;
  uint16_t* keys_ = nullptr;
  uint16_t* values_ = nullptr;
  std::byte* plan_scratch_ = nullptr;
};

}  // namespace

bool IsPrefill(const PagedAttentionParams& params) {
  return params.whole_keys && !params.merge && params.sliding_window == 0 &&
         params.max_sequence_rows > kMostDecodeRows &&
         // Of many decode rows beside a prompt's, each would take as long as 128 rows.
         params.rows > kMostDecodeRows * params.num_sequences &&
         reinterpret_cast<uintptr_t>(params.lse) % 16 == 0 &&
         BucketFor(params.num_sequences, params.max_sequence_rows, params.max_keys).has_value();
}

absl::Status PrefillAttention(DeviceQueue& queue, const PagedAttentionParams& params) {
  const absl::StatusOr<AttentionPlans*> plans = queue.attention_plans();
  if (!plans.ok()) return absl::UnimplementedError(plans.status().message());
  const absl::StatusOr<const AttentionPlan*> plan = ChoosePlan(**plans, ShapeOf(params));
  if (!plan.ok()) return plan.status();
  return Prefill(queue, **plans, **plan, params).Run();
}

}  // namespace baton::kernels::cuda
