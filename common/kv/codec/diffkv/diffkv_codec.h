// Executes KV format `diffkv` for sequences with the same tiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/core/thread_pool.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {

// Borrowed parts outlive it. Executor thread, except engine_exec() and
// NextEncodeTurn().
class DiffKvCodec final : public KvCodec {
 public:
  DiffKvCodec(const CodecContext& context,
              PagePool& pool,
              BlockCache& blocks,
              kernels::DiffKvTier high,
              kernels::DiffKvTier low);

  absl::StatusOr<std::unique_ptr<DecodeRows>> Prepare(std::span<const DecodeRow> rows,
                                                      kernels::StepArrays& arrays) override;

  const CodecContext& context() const { return context_; }
  PagePool& pool() const { return pool_; }
  BlockCache& blocks() const { return blocks_; }
  const kernels::DiffKvGeometry& geometry() const { return geometry_; }
  kernels::DiffKvPages pages() const { return {.base = pool_.base(), .geometry = geometry_}; }
  // Pages that hold so many tokens, [heads][tiers].
  int32_t PagesOf(std::span<const int32_t> counts) const;
  EncodedLayer LayerOf(std::span<const PageId> ids) const;
  // Scratch of `floats` floats, for the running call. kResourceExhausted when there is no memory.
  absl::StatusOr<float*> Scratch(size_t floats);
  // Where a prompt is coded: a side queue where the back end has such, the same for the same turn.
  absl::StatusOr<kernels::ExecContext> ExecToEncode(int32_t turn) const;
  // What comes next on the main queue waits for what was called with ExecToEncode(turn).
  absl::Status AwaitEncoding(int32_t turn) const;
  // Turns of sequences that follow each other, so that they are coded side by side. Engine thread.
  int32_t NextEncodeTurn() { return next_encode_turn_ = (next_encode_turn_ + 1) % kEncodeTurns; }
  // For the small ops of the engine thread: one thread, no workspace.
  const kernels::ExecContext& engine_exec() const { return engine_exec_; }

 private:
  // At least the side queues of any back end.
  static constexpr int32_t kEncodeTurns = 64;

  const CodecContext& context_;
  PagePool& pool_;
  BlockCache& blocks_;
  const kernels::DiffKvGeometry geometry_;
  kernels::ThreadPool engine_pool_{1};
  kernels::Buffer engine_workspace_;
  const kernels::ExecContext engine_exec_ = {.pool = &engine_pool_,
                                             .workspace = &engine_workspace_};
  kernels::Memory scratch_;
  int32_t next_encode_turn_ = 0;
};

}  // namespace baton::kv
