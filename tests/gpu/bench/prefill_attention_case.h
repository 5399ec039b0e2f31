// Attention of prompts' rows over bf16 pages, op `paged_attention`: multiplications and additions a
// second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// `sequences` prompts of Llama-3.1-8B's heads; the last `rows` of the `tokens` tokens of each are
// in the call.
struct PrefillShape {
  int32_t sequences = 1;
  int32_t rows = 0;
  int32_t tokens = 0;
  int32_t page_tokens = 32;
};

// One layer: what it reads is little beside what it computes.
class PrefillAttentionCase {
 public:
  explicit PrefillAttentionCase(const PrefillShape& shape);

  const PrefillShape& shape() const { return shape_; }
  // Allocates and fills; waits for the queue.
  absl::Status Prepare(const DeviceQueue& queue);
  // How far two rows are from the CPU back end, relative to the largest value.
  absl::StatusOr<double> Error(const ExecContext& context);
  // Gives the queue one call.
  absl::Status Run(const ExecContext& context);
  // Multiplications and additions of one call that the mask leaves.
  double operations() const;

 private:
  static constexpr int32_t kKvHeads = 8;
  static constexpr int32_t kHeads = 32;
  static constexpr int32_t kHeadDim = 128;
  static constexpr int64_t kWidth = int64_t{kHeads} * kHeadDim;
  // Queries lie in front of the keys and values of one projection.
  static constexpr int64_t kQueryStride = kWidth + 2 * kKvHeads * kHeadDim;

  int32_t table_entries() const { return layout_.pages_for(shape_.tokens); }  // of a sequence
  int64_t all_rows() const { return int64_t{shape_.sequences} * shape_.rows; }
  PagedAttentionParams Params() const;
  absl::Status UploadSequences();
  // How far a row of the last sequence is from `pages`, its copy on the host.
  absl::StatusOr<double> RowError(int32_t row, std::byte* pages) const;

  PrefillShape shape_;
  DensePageLayout layout_;
  std::vector<int32_t> tables_;  // [sequences][table_entries]
  DeviceArena arena_;
  uint16_t* q_ = nullptr;    // [all_rows, kQueryStride]
  uint16_t* out_ = nullptr;  // [all_rows, kWidth]
  std::byte* pages_ = nullptr;
  int32_t* positions_ = nullptr;
  SequenceRows* sequences_ = nullptr;
};

// Checks and times prompts of 2K to 128K tokens and chunks of longer ones, out of pages and, at
// page_tokens 24, over copies of them. One JSON object a case, on a line of its own:
//   op, sequences, rows, tokens, page_tokens   what was timed (PrefillShape)
//   error                      difference from the CPU back end, relative to the largest value
//   us                         microseconds of one call; median of repeats
//   tflop_per_s, share_of_596  10^12 operations a second; of 596 of them
// and of a case that could not be measured `failed` with the reason instead of what follows
// page_tokens. True when every case was measured.
absl::StatusOr<bool> MeasurePrefillAttention(bool quick);

}  // namespace baton::kernels::cuda
