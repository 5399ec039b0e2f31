#include "tests/gpu/bench/dense_attention_case.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240523;

}  // namespace

DenseAttentionCase::DenseAttentionCase(const BenchShape& shape, DType dtype)
    : BenchCase(shape),
      layout_({.page_tokens = kPageTokens,
               .kv_heads = shape.kv_heads,
               .head_dim = shape.head_dim,
               .dtype = dtype}) {}

absl::Status DenseAttentionCase::Prepare(const DeviceQueue& queue) {
  tables_.resize(size_t{kLayers} * static_cast<size_t>(shape().rows) *
                 static_cast<size_t>(table_entries()));
  std::iota(tables_.begin(), tables_.end(), 0);
  std::shuffle(tables_.begin(), tables_.end(), std::mt19937(kSeed));
  const auto bytes = static_cast<int64_t>(pool_bytes());
  pages_ = arena_.Allocate<std::byte>(bytes);
  BATON_RETURN_IF_ERROR(UploadSequences());
  BATON_RETURN_IF_ERROR(
      layout_.has_scales()
          ? FillFp8(queue, layout_, pages_, static_cast<int64_t>(tables_.size()), kSeed)
          : FillBf16(queue, pages_, bytes / 2, 2.0f, kSeed));
  BATON_RETURN_IF_ERROR(queries_.Allocate(queue, shape()));
  return queue.Wait();
}

absl::Status DenseAttentionCase::UploadSequences() {
  const int32_t rows = shape().rows;
  const int32_t* tables = arena_.Upload(tables_);
  positions_ = arena_.Upload(std::vector<int32_t>(static_cast<size_t>(rows), shape().tokens - 1));
  BATON_RETURN_IF_ERROR(arena_.status());
  std::vector<SequenceRows> sequences;
  sequences.reserve(static_cast<size_t>(kLayers) * static_cast<size_t>(rows));
  for (int32_t i = 0; i < kLayers * rows; ++i) {
    sequences.push_back({.row_begin = i % rows,
                         .row_count = 1,
                         .page_table = tables + int64_t{i} * table_entries()});
  }
  sequences_ = arena_.Upload(sequences);
  return arena_.status();
}

PagedAttentionParams DenseAttentionCase::Params() const {
  PagedAttentionParams params;
  params.q_stride = queries_.width();
  params.out_stride = queries_.width();
  params.heads = queries_.heads();
  params.scale = queries_.scale();
  return params;
}

absl::Status DenseAttentionCase::Run(const ExecContext& context, int32_t layer, int32_t) {
  PagedAttentionParams params = Params();
  params.q = queries_.q(0);
  params.out = queries_.out(0);
  params.positions = positions_;
  params.sequences = sequences_ + int64_t{layer} * shape().rows;
  params.num_sequences = shape().rows;
  params.pages = {.base = pages_, .layout = layout_};
  return CudaOps()->paged_attention(context, params);
}

absl::StatusOr<double> DenseAttentionCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const int32_t row = shape().rows - 1;
  BATON_ASSIGN_OR_RETURN(const std::vector<float> want, OnHost(row));
  return queries_.Difference(row, want);
}

absl::StatusOr<std::vector<float>> DenseAttentionCase::OnHost(int32_t row) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> q, queries_.Query(row));
  std::vector<float> out(q.size());
  const int32_t* table = tables_.data() + int64_t{row} * table_entries();
  Buffer pages(pool_bytes());  // takes memory where the row's pages are
  for (int32_t i = 0; i < table_entries(); ++i) {
    const size_t offset = static_cast<size_t>(table[i]) * layout_.stride_bytes();
    BATON_RETURN_IF_ERROR(CopyToHost(pages.data() + offset, pages_ + offset, layout_.page_bytes()));
  }
  const int32_t position = shape().tokens - 1;
  const SequenceRows sequence = {.row_begin = 0, .row_count = 1, .page_table = table};
  PagedAttentionParams params = Params();
  params.q = q.data();
  params.out = out.data();
  params.positions = &position;
  params.sequences = &sequence;
  params.num_sequences = 1;
  params.pages = {.base = pages.data(), .layout = layout_};
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().paged_attention(host.get(), params));
  return out;
}

double DenseAttentionCase::bytes() const {
  const double token = static_cast<double>(layout_.page_bytes()) / layout_.page_tokens;
  return token * shape().rows * shape().tokens;
}

}  // namespace baton::kernels::cuda
