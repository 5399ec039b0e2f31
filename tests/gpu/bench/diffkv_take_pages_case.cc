#include "tests/gpu/bench/diffkv_take_pages_case.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/host_context.h"
#include "tests/gpu/bench/host_diffkv_pool.h"

namespace baton::kernels::cuda {
namespace {

// The load whose results are compared with the CPU's: full pages in every head.
constexpr int32_t kSmallRows = 2;
constexpr int32_t kSmallLayers = 3;
constexpr int32_t kSmallTokens = 256;
constexpr double kSmallHighShare = 0.5;

// Rows that name `arrays` and do not sweep, with an action for every head from `actions` on.
std::vector<DiffKvAppendRow> RowsOf(const DiffKvArrays& arrays, DiffKvAction* actions) {
  std::vector<DiffKvAppendRow> rows;
  for (int32_t layer = 0; layer < arrays.load.layers; ++layer) {
    for (int32_t row = 0; row < arrays.load.rows; ++row) {
      const auto before = static_cast<int64_t>(rows.size());
      rows.push_back({.layer = arrays.layer(layer, row),
                      .row = row,
                      .position = arrays.load.tokens,
                      .sweep = false,
                      .lease = arrays.lease(row),
                      .actions = actions + before * arrays.load.geometry.kv_heads});
    }
  }
  return rows;
}

DiffKvTakePagesParams Params(const DiffKvArrays& arrays, const DiffKvAppendRow* rows) {
  return {.rows = rows,
          .layers = arrays.load.layers,
          .sequences = arrays.load.rows,
          .pages = arrays.pool()};
}

}  // namespace

DiffKvTakePagesCase::DiffKvTakePagesCase(const BenchShape& shape,
                                         double high_share,
                                         int32_t model_layers)
    : BenchCase(shape), load_(DiffKvLoadOf(shape, high_share, kAllSteps * kLayers)) {
  load_.layers = model_layers;
}

absl::Status DiffKvTakePagesCase::Prepare(const DeviceQueue& queue) {
  BATON_ASSIGN_OR_RETURN(pool_, DiffKvPool::Make(queue, load_));
  BATON_RETURN_IF_ERROR(UploadRows());
  return queue.Wait();
}

absl::Status DiffKvTakePagesCase::UploadRows() {
  auto* const actions = arena_.Allocate<DiffKvAction>(load_.sequences() * load_.geometry.kv_heads);
  BATON_RETURN_IF_ERROR(arena_.status());
  rows_ = arena_.Upload(RowsOf(pool_.arrays(), actions));
  return arena_.status();
}

absl::Status DiffKvTakePagesCase::Run(const ExecContext& context,
                                      int32_t /*layer*/,
                                      int32_t /*step*/) {
  return CudaOps()->diffkv_take_pages(context, Params(pool_.arrays(), rows_));
}

absl::StatusOr<double> DiffKvTakePagesCase::Error(const ExecContext& context) {
  BenchShape shape_of_small = shape();
  shape_of_small.rows = kSmallRows;
  shape_of_small.tokens = kSmallTokens;
  DiffKvTakePagesCase small(shape_of_small, kSmallHighShare, kSmallLayers);
  BATON_RETURN_IF_ERROR(small.Prepare(*context.queue));
  return small.Differences(context);
}

absl::StatusOr<double> DiffKvTakePagesCase::Differences(const ExecContext& context) const {
  BATON_ASSIGN_OR_RETURN(HostDiffKvPool want, HostDiffKvPool::Copy(pool_.arrays()));
  BATON_RETURN_IF_ERROR(TakeOnHost(want));
  BATON_RETURN_IF_ERROR(CudaOps()->diffkv_take_pages(context, Params(pool_.arrays(), rows_)));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const HostDiffKvPool got, HostDiffKvPool::Copy(pool_.arrays()));
  return static_cast<double>(got.Differences(want));
}

absl::Status DiffKvTakePagesCase::TakeOnHost(HostDiffKvPool& pool) const {
  const DiffKvArrays& arrays = pool.arrays();
  std::vector<DiffKvAction> actions(
      static_cast<size_t>(arrays.load.sequences() * arrays.load.geometry.kv_heads));
  const std::vector<DiffKvAppendRow> rows = RowsOf(arrays, actions.data());
  HostContext host;
  return CpuOps().diffkv_take_pages(host.get(), Params(arrays, rows.data()));
}

double DiffKvTakePagesCase::bytes() const {
  return static_cast<double>(load_.sequences() * load_.geometry.kv_heads * kDiffKvTiers) *
         sizeof(int32_t);
}

}  // namespace baton::kernels::cuda
