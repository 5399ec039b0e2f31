// Decode attention over bf16 or f8e4m3 pages: op `paged_attention`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/query_rows.h"

namespace baton::kernels::cuda {

// All rows of a layer in one call. Every layer of a sequence has pages of its own, scattered over
// the pool.
class DenseAttentionCase : public BenchCase {
 public:
  // `dtype`: of the pages.
  DenseAttentionCase(const BenchShape& shape, DType dtype);

  absl::Status Prepare(const DeviceQueue& queue) override;
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Keys and values of all tokens, each once, with their scales.
  double bytes() const override;

 private:
  static constexpr int32_t kPageTokens = 32;

  int32_t table_entries() const { return layout_.pages_for(shape().tokens); }  // of a sequence
  size_t pool_bytes() const { return tables_.size() * layout_.stride_bytes(); }
  absl::Status UploadSequences();
  PagedAttentionParams Params() const;
  // The results of one row of the first layer on the CPU.
  absl::StatusOr<std::vector<float>> OnHost(int32_t row) const;

  DensePageLayout layout_;
  std::vector<int32_t> tables_;  // [layers][rows][table_entries]
  DeviceArena arena_;
  QueryRows queries_;
  std::byte* pages_ = nullptr;
  int32_t* positions_ = nullptr;       // [rows]
  SequenceRows* sequences_ = nullptr;  // [layers][rows]
};

}  // namespace baton::kernels::cuda
