#include "tests/gpu/bench/shadowkv_attention_case.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_chunk_lists.h"
#include "tests/gpu/bench/shadowkv_host_sequence.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {

ShadowKvAttentionCase::ShadowKvAttentionCase(const BenchShape& shape,
                                             double hit_share,
                                             const ShadowKvCodes& codes)
    : BenchCase(shape),
      load_(ShadowKvLoadOf(shape, codes)),
      hits_(std::lround(hit_share * static_cast<double>(load_.config().budget_chunks()))) {}

absl::Status ShadowKvAttentionCase::Prepare(const DeviceQueue& queue) {
  BATON_ASSIGN_OR_RETURN(pool_, ShadowKvPool::Make(queue, load_));
  BATON_RETURN_IF_ERROR(queries_.Allocate(queue, shape()));
  const ShadowKvChunkLists lists(load_, pool_.static_ids(), hits_);
  ids_ = arena_.Upload(lists.ids());
  missed_chunks_ = lists.missed_chunks();
  BATON_RETURN_IF_ERROR(arena_.status());
  return queue.Wait();
}

const int32_t* ShadowKvAttentionCase::Ids(int32_t layer, int32_t step) const {
  const int32_t turn = step % ShadowKvChunkLists::kTurns;
  return ids_ + (int64_t{turn} * load_.layers + layer) * load_.layer_ids();
}

absl::Status ShadowKvAttentionCase::Run(const ExecContext& context, int32_t layer, int32_t step) {
  return CudaOps()->shadowkv_attention(context,
                                       {.q = queries_.q(0),
                                        .q_stride = queries_.width(),
                                        .sequences = pool_.sequences(layer),
                                        .num_sequences = load_.rows,
                                        .heads = queries_.heads(),
                                        .scale = queries_.scale(),
                                        .chunk_ids = Ids(layer, step),
                                        .chunk_ids_stride = load_.config().budget_chunks(),
                                        .rope = pool_.rope(),
                                        .out = queries_.out(0),
                                        .out_stride = queries_.width(),
                                        .bounds = load_.bounds()});
}

absl::StatusOr<double> ShadowKvAttentionCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0, 0));
  BATON_RETURN_IF_ERROR(Run(context, 0, 1));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_RETURN_IF_ERROR(CheckHits());
  const int32_t row = load_.rows - 1;
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         Downloaded(Ids(0, 1) + row * load_.row_ids(), load_.row_ids()));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> q, queries_.Query(row));
  BATON_ASSIGN_OR_RETURN(const ShadowKvHostSequence host,
                         ShadowKvHostSequence::Copy(pool_, 0, row));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> want, host.Attend(q, queries_.scale(), ids));
  return queries_.Difference(row, want);
}

absl::Status ShadowKvAttentionCase::CheckHits() const {
  BATON_ASSIGN_OR_RETURN(const std::vector<ShadowKvCounters> counters,
                         Downloaded(pool_.counters(0), load_.rows));
  for (const ShadowKvCounters& of_row : counters) {
    if (of_row.hits != hits_ * load_.config().kv_heads) {
      return absl::InternalError(
          absl::StrCat(of_row.hits, " hits of a row, not ", hits_ * load_.config().kv_heads));
    }
  }
  return absl::OkStatus();
}

double ShadowKvAttentionCase::bytes() const { return load_.attention_bytes(hits_, missed_chunks_); }

}  // namespace baton::kernels::cuda
