// Executes KV format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// Sequences of one call may have different parameters. Borrowed parts outlive it. Executor thread,
// except pool(), which is the engine thread's.
class ShadowKvCodec final : public KvCodec {
 public:
  ShadowKvCodec(const CodecContext& context, RunPool& pool);

  absl::Status Append(std::span<const DecodeRow> rows, const KvEntries& entries) override;
  absl::Status Attend(std::span<const DecodeRow> rows, const KvQueries& queries) override;

  const CodecContext& context() const { return context_; }
  RunPool& pool() const { return pool_; }
  const kernels::ShadowKvRope& rope() const { return rope_; }
  const float* key_bias(int32_t kv_layer) const;
  // The executor's threads with a workspace of at least `bytes`.
  const kernels::ExecContext& ExecWith(size_t bytes);
  // Workspace that ops need for sequences of `config` and at most `max_tokens` tokens.
  size_t WorkspaceBytes(const kernels::ShadowKvConfig& config, int64_t max_tokens) const;

 private:
  // Fills sequences_ for a stored layer; the largest workspace that one of them needs.
  size_t ListSequences(std::span<const DecodeRow> rows, int32_t kv_layer);
  absl::Status Select(const kernels::ExecContext& exec,
                      const KvQueries& queries,
                      int64_t chunk_ids_stride);

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
  std::vector<kernels::ShadowKvCounters> counters_;
};

}  // namespace baton::kv
