#include "tests/gpu/bench/diffkv_attention_case.h"

#include <cstddef>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/host_context.h"
#include "tests/gpu/bench/host_diffkv_pool.h"

namespace baton::kernels::cuda {

DiffKvAttentionCase::DiffKvAttentionCase(const BenchShape& shape, double high_share, int32_t every)
    : BenchCase(shape), load_(DiffKvLoadOf(shape, high_share)), every_(every) {}

absl::Status DiffKvAttentionCase::Prepare(const DeviceQueue& queue) {
  BATON_ASSIGN_OR_RETURN(pool_, DiffKvPool::Make(queue, load_));
  BATON_RETURN_IF_ERROR(queries_.Allocate(queue, shape()));
  BATON_RETURN_IF_ERROR(UploadRows());
  return queue.Wait();
}

absl::Status DiffKvAttentionCase::UploadRows() {
  const int64_t scratch_floats =
      DiffKvScratchFloats(load_.geometry, queries_.heads(), load_.tokens);
  const int64_t probability_floats = int64_t{load_.geometry.kv_heads} * load_.tokens;
  scratch_ = arena_.Allocate<float>(load_.rows * scratch_floats);
  auto* probabilities = arena_.Allocate<float>(load_.rows * probability_floats);
  BATON_RETURN_IF_ERROR(arena_.status());
  std::vector<DiffKvAttentionRow> rows;
  for (const bool scored : {false, true}) {
    for (int32_t layer = 0; layer < load_.layers; ++layer) {
      for (int32_t r = 0; r < load_.rows; ++r) {
        rows.push_back({.layer = pool_.arrays().layer(layer, r),
                        .row = r,
                        .position = load_.tokens,
                        .probabilities = scored ? probabilities + r * probability_floats : nullptr,
                        .probability_stride = load_.tokens,
                        .scratch_begin = r * scratch_floats});
      }
    }
  }
  rows_ = arena_.Upload(rows);
  return arena_.status();
}

DiffKvAttentionParams DiffKvAttentionCase::Params() const {
  DiffKvAttentionParams params;
  params.q_stride = queries_.width();
  params.out_stride = queries_.width();
  params.heads = queries_.heads();
  params.scale = queries_.scale();
  return params;
}

absl::Status DiffKvAttentionCase::Run(const ExecContext& context, int32_t layer, int32_t step) {
  DiffKvAttentionParams params = Params();
  params.q = queries_.q(0);
  params.out = queries_.out(0);
  params.scratch = scratch_;
  params.scored = every_ > 0 && step % every_ == 0;
  params.rows = rows_ + (params.scored ? load_.sequences() : 0) + int64_t{layer} * load_.rows;
  params.num_rows = load_.rows;
  params.pages = pool_.arrays().pool();
  return CudaOps()->diffkv_attention(context, params);
}

absl::StatusOr<double> DiffKvAttentionCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const int32_t row = load_.rows - 1;
  BATON_ASSIGN_OR_RETURN(const std::vector<float> want, OnHost(row));
  return queries_.Difference(row, want);
}

absl::StatusOr<std::vector<float>> DiffKvAttentionCase::OnHost(int32_t row) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> q, queries_.Query(row));
  BATON_ASSIGN_OR_RETURN(const HostDiffKvPool pool,
                         HostDiffKvPool::CopyRow(pool_.arrays(), 0, row));
  std::vector<float> out(q.size());
  std::vector<float> scratch(
      static_cast<size_t>(DiffKvScratchFloats(load_.geometry, queries_.heads(), load_.tokens)));
  DiffKvAttentionRow host_row = {.layer = pool.arrays().layer(0, row),
                                 .position = load_.tokens,
                                 .probability_stride = load_.tokens};
  DiffKvAttentionParams params = Params();
  params.q = q.data();
  params.out = out.data();
  params.scratch = scratch.data();
  params.rows = &host_row;
  params.num_rows = 1;
  params.pages = pool.arrays().pool();
  params.scored = false;
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().diffkv_attention(host.get(), params));
  return out;
}

double DiffKvAttentionCase::bytes() const { return load_.read_bytes(); }

}  // namespace baton::kernels::cuda
