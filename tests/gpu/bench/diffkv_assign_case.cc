#include "tests/gpu/bench/diffkv_assign_case.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

DiffKvAssignCase::DiffKvAssignCase(const BenchShape& shape, double high_share)
    : BenchCase(shape), load_(DiffKvLoadOf(shape, high_share)) {}

int64_t DiffKvAssignCase::pages_of_sequence() const {
  return int64_t{load_.geometry.kv_heads} * load_.columns();
}

absl::Status DiffKvAssignCase::Prepare(const DeviceQueue& queue) {
  arrays_ = {.load = load_, .tables = arena_.Allocate<int32_t>(load_.pages())};
  std::vector<int32_t> counts;
  for (int64_t head = 0; head < load_.sequences() * load_.geometry.kv_heads; ++head) {
    counts.push_back(load_.tier_tokens(kDiffKvHigh));
    counts.push_back(load_.tier_tokens(kDiffKvLow));
  }
  arrays_.counts = arena_.Upload(counts);
  // For the check and every step, in all layers.
  std::vector<int32_t> ids(
      static_cast<size_t>((1 + kAllSteps) * load_.layers * pages_of_sequence()));
  std::iota(ids.begin(), ids.end(), 0);
  arrays_.spare = arena_.Upload(ids);
  arrays_.leases = arena_.Upload(
      std::vector<DiffKvLease>(static_cast<size_t>(load_.rows),
                               {.ids = arrays_.spare, .count = static_cast<int32_t>(ids.size())}));
  BATON_RETURN_IF_ERROR(arena_.status());
  return queue.Wait();
}

absl::Status DiffKvAssignCase::Run(const ExecContext& context, int32_t layer, int32_t /*step*/) {
  for (int32_t row = 0; row < load_.rows; ++row) {
    BATON_RETURN_IF_ERROR(CudaOps()->diffkv_assign_pages(context,
                                                         {.geometry = load_.geometry,
                                                          .layer = arrays_.layer(layer, row),
                                                          .lease = arrays_.lease(row)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DiffKvAssignCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const int64_t entries = pages_of_sequence();
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> got, Downloaded(arrays_.tables, entries));
  BATON_ASSIGN_OR_RETURN(
      std::vector<int32_t> counts,
      Downloaded(arrays_.counts, int64_t{load_.geometry.kv_heads} * kDiffKvTiers));
  std::vector<int32_t> ids(static_cast<size_t>(entries));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<int32_t> want(ids.size());  // as the device's memory was
  DiffKvLease lease = {.ids = ids.data(), .count = static_cast<int32_t>(ids.size())};
  BATON_RETURN_IF_ERROR(AssignDiffKvPages({.geometry = load_.geometry,
                                           .layer = {.page_table = want.data(),
                                                     .token_counts = counts.data(),
                                                     .columns = load_.columns()},
                                           .lease = &lease}));
  double different = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    different += got[i] == want[i] ? 0.0 : 1.0;
  }
  return different;
}

double DiffKvAssignCase::bytes() const {
  return static_cast<double>(load_.rows * pages_of_sequence()) * sizeof(int32_t);
}

}  // namespace baton::kernels::cuda
