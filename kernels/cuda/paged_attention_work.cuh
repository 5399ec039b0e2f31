// How the work of paged attention is cut into items and found by the blocks.
//
// The keys of a row are cut into splits whose length follows from the number of keys alone, so that
// a row's result does not depend on what else is in the call. A row's (KV head, split) are items of
// their own where the workspace has room for the partial results; else a block takes all splits of
// a (row, KV head), one after another, and folds them in the same order: the bits are the same.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda::paged {

// Tokens of a stage, what is loaded and waited for at once. Splits are whole stages.
inline constexpr int32_t kStageTokens = 64;
inline constexpr int32_t kChunkTokens = 16;  // of a copy
// Up to 2K keys a split has two stages, so that one sequence keeps many multiprocessors busy; from
// 8K on eight, whose partial results are a hundredth of what is read; more where that would make
// more than kMaxSplits.
inline constexpr int32_t kLeastSplitStages = 2;
inline constexpr int32_t kUsualSplitStages = 8;
inline constexpr int32_t kUsualSplits = 16;
inline constexpr int32_t kMaxSplits = 32;

// Counters of the queue: the next item to take, the blocks that take no more, and from
// kGroupCounter on one for each (row, KV head) whose splits are items, at its first slot.
inline constexpr int32_t kNextItemCounter = 0;
inline constexpr int32_t kRetiredCounter = 1;
inline constexpr int32_t kGroupCounter = 2;

// A call as the kernel gets it.
struct Call {
  PagedAttentionParams params;
  int32_t group = 0;          // query heads per KV head
  float score_scale = 0.0f;   // scale * log2(e): weights are powers of two
  float* partials = nullptr;  // [slots][PartialFloats(group, head_dim)]
  int32_t slots = 0;
  uint32_t* counters = nullptr;
};

// Attention of one row's query heads of one KV head over one split, or over all of them.
struct Item {
  const int32_t* page_table;
  int32_t row;  // -1: there are no more items
  int32_t kv_head;
  int32_t first;  // the row's first key
  int32_t begin;  // stages are from `begin`, a multiple of kChunkTokens, to before `end`
  int32_t end;
  int32_t split_tokens;
  int32_t splits;  // of the row
  int32_t split;
  int32_t slot;  // of the row's and head's first split; -1 where the item is all splits
};

// Stages of a split of a row that has so many.
__device__ inline int32_t SplitStages(int32_t stages) {
  const int32_t even = (stages + kUsualSplits - 1) / kUsualSplits;
  const int32_t usual = min(max(even, kLeastSplitStages), kUsualSplitStages);
  return max(usual, (stages + kMaxSplits - 1) / kMaxSplits);
}

// Finds items by number. A warp walks over the rows of the call, 32 at a time: lane i knows the
// i-th row of the window. All lanes call together.
class RowCursor {
 public:
  __device__ explicit RowCursor(const Call& call) : call_(call) {}

  // Writes the item of this number, in shared memory, where all lanes may read it afterwards.
  // Numbers must not fall from call to call. False, and row -1, when there are fewer items.
  __device__ bool Find(int32_t number, Item& item) {
    while (number >= items_end_) {
      if (next_sequence_ >= call_.params.num_sequences) {
        if (Lane() == 0) item.row = -1;
        __syncwarp();
        return false;
      }
      NextWindow();
    }
    const int32_t index = number - items_begin_;
    if (index >= 0 && index < items_) Write(index, item);
    __syncwarp();
    return true;
  }

 private:
  static __device__ int32_t Lane() { return static_cast<int32_t>(threadIdx.x % kWarpLanes); }
  template <typename T>
  static __device__ T From(T value, int32_t lane) {
    return __shfl_sync(kAllLanes, value, lane);
  }

  // Goes on to the next rows: those of up to 32 sequences, as far as they are no more than 32.
  __device__ void NextWindow() {
    SequenceRows sequence;
    if (next_sequence_ + Lane() < call_.params.num_sequences) {
      sequence = call_.params.sequences[next_sequence_ + Lane()];
    }
    const int32_t skipped = Lane() == 0 ? next_row_ : 0;
    const int32_t count = sequence.row_count - skipped;
    const int32_t end = InclusiveSum(count);
    // This lane's row is one of the first sequence that ends behind it.
    int32_t source = 0;
    for (int32_t step = kWarpLanes / 2; step > 0; step /= 2) {
      source += From(end, source + step - 1) <= Lane() ? step : 0;
    }
    const int32_t offset =
        Lane() - (From(end, source) - From(count, source)) + From(skipped, source);
    const int32_t rows = From(end, kWarpLanes - 1);
    row_ = From(sequence.row_begin, source) + offset;
    page_table_ = reinterpret_cast<const int32_t*>(
        From(reinterpret_cast<unsigned long long>(sequence.page_table), source));
    const int32_t key_begin = From(sequence.key_begin, source);
    const int32_t key_end = From(sequence.key_end, source);
    const bool used = Lane() < rows;
    CutRow(used, key_begin, key_end);
    CountItems(used);
    const bool all = rows <= kWarpLanes;
    next_sequence_ += all ? kWarpLanes : From(source, kWarpLanes - 1);
    next_row_ = all ? 0 : From(offset, kWarpLanes - 1) + 1;
  }

  // The lane's row: its keys and splits.
  __device__ void CutRow(bool used, int32_t key_begin, int32_t key_end) {
    const int32_t window = call_.params.sliding_window;
    const int32_t position = used ? call_.params.positions[row_] : -1;
    first_ = max(key_begin, window > 0 ? position - window + 1 : 0);
    end_ = min(position + 1, key_end);
    begin_ = first_ / kChunkTokens * kChunkTokens;
    if (first_ >= end_) first_ = begin_ = end_ = 0;
    const int32_t stages = (end_ - begin_ + kStageTokens - 1) / kStageTokens;
    split_tokens_ = SplitStages(stages) * kStageTokens;
    splits_ = max(1, (end_ - begin_ + split_tokens_ - 1) / split_tokens_);
  }

  // Which slots and items are the lane's. Rows get slots in order until one finds too few.
  __device__ void CountItems(bool used) {
    const int32_t kv_heads = call_.params.pages.layout.kv_heads;
    const int32_t slots = used && splits_ > 1 ? splits_ * kv_heads : 0;
    const int32_t slots_end = slots_end_ + InclusiveSum(slots);
    slot_ = slots > 0 && slots_end <= call_.slots ? slots_end - slots : -1;
    items_ = !used ? 0 : slot_ < 0 ? kv_heads : slots;
    const int32_t items_end = items_end_ + InclusiveSum(items_);
    items_begin_ = items_end - items_;
    slots_end_ = From(slots_end, kWarpLanes - 1);
    items_end_ = From(items_end, kWarpLanes - 1);
  }

  // The lane's item of this index.
  __device__ void Write(int32_t index, Item& item) const {
    const bool cut = slot_ >= 0;
    const int32_t kv_head = cut ? index / splits_ : index;
    const int32_t split = cut ? index - kv_head * splits_ : 0;
    const int32_t begin = begin_ + split * split_tokens_;
    item = {.page_table = page_table_,
            .row = row_,
            .kv_head = kv_head,
            .first = first_,
            .begin = begin,
            .end = cut ? min(begin + split_tokens_, end_) : end_,
            .split_tokens = split_tokens_,
            .splits = splits_,
            .split = split,
            .slot = cut ? slot_ + kv_head * splits_ : -1};
  }

  const Call& call_;
  // The same in all lanes: where the next window begins, and the items and slots up to there.
  int64_t next_sequence_ = 0;
  int32_t next_row_ = 0;  // of that sequence
  int32_t items_end_ = 0;
  int32_t slots_end_ = 0;
  // The lane's row.
  const int32_t* page_table_ = nullptr;
  int32_t row_ = 0;
  int32_t first_ = 0;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  int32_t split_tokens_ = 0;
  int32_t splits_ = 0;
  int32_t slot_ = -1;
  int32_t items_begin_ = 0;
  int32_t items_ = 0;
};

}  // namespace baton::kernels::cuda::paged
