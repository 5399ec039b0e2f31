#include "tests/gpu/bench/diffkv_append_case.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_default_policy.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"
#include "tests/gpu/bench/host_diffkv_pool.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240524;

// The load whose results are compared with the CPU's.
constexpr int32_t kSmallRows = 2;
constexpr int32_t kSmallTokens = 512;

}  // namespace

DiffKvAppendCase::DiffKvAppendCase(const BenchShape& shape, double high_share, bool sweep)
    : BenchCase(shape),
      high_share_(high_share),
      sweep_(sweep),
      load_(DiffKvLoadOf(shape, high_share, kAllSteps)) {}

absl::Status DiffKvAppendCase::Prepare(const DeviceQueue& queue) {
  BATON_ASSIGN_OR_RETURN(pool_, DiffKvPool::Make(queue, load_));
  const int64_t elements = 2 * load_.rows * width();
  tokens_ = arena_.Allocate<uint16_t>(elements);
  BATON_RETURN_IF_ERROR(UploadRows());
  BATON_RETURN_IF_ERROR(FillBf16(queue, tokens_, elements, 2.0f, kSeed));
  return queue.Wait();
}

absl::Status DiffKvAppendCase::UploadRows() {
  const UnobservedRange* unobserved =
      arena_.Upload(std::vector<UnobservedRange>{DiffKvUnobserved(0, load_.tokens)});
  const int64_t row_actions = load_.geometry.kv_heads;
  auto* actions = arena_.Allocate<DiffKvAction>(load_.sequences() * row_actions);
  BATON_RETURN_IF_ERROR(arena_.status());
  const DiffKvArrays& arrays = pool_.arrays();
  std::vector<DiffKvAppendRow> rows;
  for (int32_t step = 0; step < kAllSteps; ++step) {
    for (int32_t layer = 0; layer < load_.layers; ++layer) {
      for (int32_t r = 0; r < load_.rows; ++r) {
        rows.push_back({.layer = arrays.layer(layer, r),
                        .policy = DiffKvDefaultPolicy(unobserved),
                        .row = r,
                        .position = load_.tokens + step,
                        .sweep = sweep_,
                        .lease = arrays.lease(r),
                        .actions = actions + (int64_t{layer} * load_.rows + r) * row_actions});
      }
    }
  }
  rows_ = arena_.Upload(rows);
  return arena_.status();
}

DiffKvAppendParams DiffKvAppendCase::Params(int64_t first, int64_t rows) const {
  return {.k = tokens_,
          .v = tokens_ + width(),
          .stride = 2 * width(),
          .rows = rows_ + first,
          .num_rows = rows,
          .pages = pool_.arrays().pool()};
}

absl::Status DiffKvAppendCase::Decide(const ExecContext& context,
                                      int64_t first,
                                      int32_t layers,
                                      int32_t rows) const {
  const DiffKvPages pages = pool_.arrays().pool();
  if (sweep_) {
    BATON_RETURN_IF_ERROR(CudaOps()->diffkv_sweep(
        context, {.rows = rows_ + first, .num_rows = int64_t{layers} * rows, .pages = pages}));
  }
  return CudaOps()->diffkv_take_pages(
      context, {.rows = rows_ + first, .layers = layers, .sequences = rows, .pages = pages});
}

absl::Status DiffKvAppendCase::Run(const ExecContext& context, int32_t layer, int32_t step) {
  const int64_t first = int64_t{step} * load_.sequences();
  if (layer == 0) {
    BATON_RETURN_IF_ERROR(Decide(context, first, load_.layers, load_.rows));
  }
  return CudaOps()->diffkv_append(context, Params(first + int64_t{layer} * load_.rows, load_.rows));
}

absl::StatusOr<double> DiffKvAppendCase::Error(const ExecContext& context) {
  BenchShape shape_of_small = shape();
  shape_of_small.rows = kSmallRows;
  shape_of_small.tokens = kSmallTokens;
  DiffKvAppendCase small(shape_of_small, high_share_, sweep_);
  BATON_RETURN_IF_ERROR(small.Prepare(*context.queue));
  return small.Differences(context);
}

absl::StatusOr<double> DiffKvAppendCase::Differences(const ExecContext& context) const {
  const int32_t row = load_.rows - 1;
  BATON_ASSIGN_OR_RETURN(HostDiffKvPool want, HostDiffKvPool::Copy(pool_.arrays()));
  BATON_RETURN_IF_ERROR(AppendOnHost(row, want));
  BATON_RETURN_IF_ERROR(Decide(context, row, 1, 1));
  BATON_RETURN_IF_ERROR(CudaOps()->diffkv_append(context, Params(row, 1)));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const HostDiffKvPool got, HostDiffKvPool::Copy(pool_.arrays()));
  return static_cast<double>(got.Differences(want));
}

absl::Status DiffKvAppendCase::AppendOnHost(int32_t row, HostDiffKvPool& pool) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits,
                         Downloaded(tokens_ + 2 * row * width(), 2 * width()));
  std::vector<float> token(bits.size());
  std::transform(bits.begin(), bits.end(), token.begin(), BF16ToF32);
  const UnobservedRange unobserved = DiffKvUnobserved(0, load_.tokens);
  std::vector<DiffKvAction> actions(static_cast<size_t>(load_.geometry.kv_heads));
  DiffKvAppendRow host_row = {.layer = pool.arrays().layer(0, row),
                              .policy = DiffKvDefaultPolicy(&unobserved),
                              .position = load_.tokens,
                              .sweep = sweep_,
                              .lease = pool.arrays().lease(row),
                              .actions = actions.data()};
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().diffkv_sweep(
      host.get(), {.rows = &host_row, .num_rows = 1, .pages = pool.arrays().pool()}));
  BATON_RETURN_IF_ERROR(CpuOps().diffkv_take_pages(
      host.get(), {.rows = &host_row, .layers = 1, .sequences = 1, .pages = pool.arrays().pool()}));
  return CpuOps().diffkv_append(host.get(),
                                {.k = token.data(),
                                 .v = token.data() + width(),
                                 .stride = 2 * width(),
                                 .rows = &host_row,
                                 .num_rows = 1,
                                 .pages = pool.arrays().pool()});
}

double DiffKvAppendCase::bytes() const {
  constexpr double kTokenBytes = sizeof(float) + sizeof(int32_t);
  return sweep_ ? kTokenBytes * load_.rows * load_.geometry.kv_heads * load_.tokens : 0.0;
}

}  // namespace baton::kernels::cuda
