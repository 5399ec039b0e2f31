#include "tests/gpu/bench/shadowkv_select_case.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_host_sequence.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {
namespace {

// Share of the ids that are not among those wanted for their head, or out of order; [heads][count].
double ShareOfOthers(const std::vector<int32_t>& got,
                     const std::vector<int32_t>& want,
                     int64_t count) {
  int64_t others = 0;
  const auto total = static_cast<int64_t>(want.size());
  for (int64_t i = 0; i < total; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto head = want.begin() + i / count * count;
    const bool ascends = i % count == 0 || got[at] > got[at - 1];
    others += ascends && std::binary_search(head, head + count, got[at]) ? 0 : 1;
  }
  return static_cast<double>(others) / static_cast<double>(total);
}

}  // namespace

ShadowKvSelectCase::ShadowKvSelectCase(const BenchShape& shape, const ShadowKvCodes& codes)
    : BenchCase(shape), load_(ShadowKvLoadOf(shape, codes)) {}

absl::Status ShadowKvSelectCase::Prepare(const DeviceQueue& queue) {
  BATON_ASSIGN_OR_RETURN(pool_, ShadowKvPool::Make(queue, load_));
  BATON_RETURN_IF_ERROR(queries_.Allocate(queue, shape()));
  ids_ = arena_.Allocate<int32_t>(load_.layer_ids());
  BATON_RETURN_IF_ERROR(arena_.status());
  return queue.Wait();
}

absl::Status ShadowKvSelectCase::Run(const ExecContext& context, int32_t layer, int32_t) {
  return CudaOps()->shadowkv_select(context,
                                    {.q = queries_.q(0),
                                     .q_stride = queries_.width(),
                                     .sequences = pool_.sequences(layer),
                                     .num_sequences = load_.rows,
                                     .heads = queries_.heads(),
                                     .scale = queries_.scale(),
                                     .chunk_ids = ids_,
                                     .chunk_ids_stride = load_.config().budget_chunks(),
                                     .bounds = load_.bounds()});
}

absl::StatusOr<double> ShadowKvSelectCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const int32_t row = load_.rows - 1;
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> got,
                         Downloaded(ids_ + row * load_.row_ids(), load_.row_ids()));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> q, queries_.Query(row));
  BATON_ASSIGN_OR_RETURN(const ShadowKvHostSequence host,
                         ShadowKvHostSequence::Copy(pool_, 0, row));
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> want, host.Select(q, queries_.scale()));
  return ShareOfOthers(got, want, load_.config().budget_chunks());
}

double ShadowKvSelectCase::bytes() const { return load_.select_bytes(); }

}  // namespace baton::kernels::cuda
