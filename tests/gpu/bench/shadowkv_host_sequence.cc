#include "tests/gpu/bench/shadowkv_host_sequence.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_angles.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {
namespace {

// Threads, and workspace for the ops of a load's decode steps.
class StepContext {
 public:
  StepContext(const ShadowKvLoad& load, int64_t heads)
      : threads_(kThreads), workspace_(WorkspaceBytes(load, heads)) {}

  // Borrows this object.
  ExecContext get() { return {.pool = &threads_, .workspace = &workspace_}; }

 private:
  static constexpr int kThreads = 16;

  static size_t WorkspaceBytes(const ShadowKvLoad& load, int64_t heads) {
    const ShadowKvConfig& config = load.config();
    return std::max(CpuOps().workspace_bytes(kThreads, config.width(), config.head_dim),
                    CpuOps().shadowkv_workspace_bytes(
                        kThreads,
                        {.config = config,
                         .heads = heads,
                         .max_tokens = load.layout.prompt_tokens + load.max_generated}));
  }

  ThreadPool threads_;
  Buffer workspace_;
};

}  // namespace

absl::StatusOr<ShadowKvHostSequence> ShadowKvHostSequence::Copy(const ShadowKvPool& pool,
                                                                int32_t layer,
                                                                int32_t row) {
  ShadowKvHostSequence copy;
  copy.load_ = pool.load();
  copy.prompt_ = Buffer(copy.load_.layout.bytes);
  copy.tail_ = Buffer(copy.load_.tail_bytes());
  BATON_RETURN_IF_ERROR(
      CopyToHost(copy.prompt_.data(), pool.prompt(layer, row), copy.prompt_.size()));
  BATON_RETURN_IF_ERROR(CopyToHost(copy.tail_.data(), pool.tail(layer, row), copy.tail_.size()));
  const ShadowKvSequence sequence = pool.sequence(layer, row);
  copy.value_prompt_ = Buffer(copy.load_.prompt_value_bytes());
  copy.value_tail_ = Buffer(copy.load_.tail_value_bytes());
  std::copy_n(sequence.value_prompt, copy.value_prompt_.size(), copy.value_prompt_.data());
  std::copy_n(sequence.value_tail, copy.value_tail_.size(), copy.value_tail_.data());
  return copy;
}

ShadowKvSequence ShadowKvHostSequence::get() const {
  return {.layout = &load_.layout,
          .prompt = prompt_.data(),
          .tail = tail_.data(),
          .max_generated = load_.max_generated,
          .position = load_.position(),
          .value_prompt = value_prompt_.data(),
          // There may be no block of the tail, but there is a place for it.
          .value_tail = value_tail_.size() > 0 ? value_tail_.data() : tail_.data()};
}

int64_t ShadowKvHostSequence::HeadsOf(const std::vector<float>& q) const {
  return static_cast<int64_t>(q.size()) / load_.config().head_dim;
}

absl::StatusOr<std::vector<int32_t>> ShadowKvHostSequence::Select(const std::vector<float>& q,
                                                                  float scale) const {
  std::vector<int32_t> ids(static_cast<size_t>(load_.row_ids()));
  const ShadowKvSequence sequence = get();
  StepContext context(load_, HeadsOf(q));
  BATON_RETURN_IF_ERROR(
      CpuOps().shadowkv_select(context.get(),
                               {.q = q.data(),
                                .q_stride = static_cast<int64_t>(q.size()),
                                .sequences = &sequence,
                                .num_sequences = 1,
                                .heads = HeadsOf(q),
                                .scale = scale,
                                .chunk_ids = ids.data(),
                                .chunk_ids_stride = load_.config().budget_chunks()}));
  return ids;
}

absl::StatusOr<std::vector<float>> ShadowKvHostSequence::Attend(
    const std::vector<float>& q, float scale, const std::vector<int32_t>& chunk_ids) const {
  std::vector<float> out(q.size());
  const ShadowKvSequence sequence = get();
  const ShadowKvAngles angles(int64_t{load_.position()} + 1, load_.config().head_dim);
  StepContext context(load_, HeadsOf(q));
  BATON_RETURN_IF_ERROR(
      CpuOps().shadowkv_attention(context.get(),
                                  {.q = q.data(),
                                   .q_stride = static_cast<int64_t>(q.size()),
                                   .sequences = &sequence,
                                   .num_sequences = 1,
                                   .heads = HeadsOf(q),
                                   .scale = scale,
                                   .chunk_ids = chunk_ids.data(),
                                   .chunk_ids_stride = load_.config().budget_chunks(),
                                   .rope = angles.get(),
                                   .out = out.data(),
                                   .out_stride = static_cast<int64_t>(q.size())}));
  return out;
}

}  // namespace baton::kernels::cuda
