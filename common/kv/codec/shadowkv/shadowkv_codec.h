// Executes KV format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/host_codec.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

class ShadowKvSequence;

// Sequences of one call may have different parameters. Borrowed parts outlive it. Executor thread,
// except pool(), which is the engine thread's.
class ShadowKvCodec final : public HostCodec {
 public:
  ShadowKvCodec(const CodecContext& context, RunPool& pool);

  absl::Status Append(std::span<const DecodeRow> rows, const KvEntries& entries) override;
  absl::Status Attend(std::span<const DecodeRow> rows, const KvQueries& queries) override;

  // Attention of the rows of one sequence over the tokens up to `newest`, each row with a selection
  // of its own, merged into what queries.out and lse[row_count][heads] hold.
  absl::Status AttendBehind(ShadowKvSequence& sequence,
                            int32_t newest,
                            const PromptRows& rows,
                            const KvQueries& queries,
                            float* lse);

  const CodecContext& context() const { return context_; }
  RunPool& pool() const { return pool_; }
  const kernels::ShadowKvRope& rope() const { return rope_; }
  const float* key_bias(int32_t kv_layer) const;
  // The executor's threads with a workspace of at least `bytes`.
  const kernels::ExecContext& ExecWith(size_t bytes);
  // Workspace that ops need for sequences of `config` and at most `max_tokens` tokens, whose layers
  // are factored `layers` at a time.
  size_t WorkspaceBytes(const kernels::ShadowKvConfig& config,
                        int64_t max_tokens,
                        int64_t layers) const;

 private:
  // Fills sequences_ for a stored layer; the largest workspace that one of them needs.
  size_t ListSequences(std::span<const DecodeRow> rows, int32_t kv_layer);
  // Selects for the queries in packed_ into chunk_ids_ and cluster_logits_; the largest budget in
  // chunks, which is the stride of ids.
  absl::StatusOr<int64_t> Select(const kernels::ExecContext& exec, const KvQueries& queries);

  const CodecContext& context_;
  RunPool& pool_;
  kernels::Buffer cosines_;
  kernels::Buffer sines_;
  kernels::ShadowKvRope rope_;
  kernels::Buffer workspace_;
  kernels::ExecContext exec_;
  // Rows of a call, one after another.
  std::vector<float> packed_;
  std::vector<float> out_;
  std::vector<kernels::ShadowKvSequence> sequences_;
  std::vector<int32_t> chunk_ids_;
  std::vector<float> cluster_logits_;
  int64_t cluster_stride_ = 0;
  std::vector<kernels::ShadowKvCounters> counters_;
};

}  // namespace baton::kv
