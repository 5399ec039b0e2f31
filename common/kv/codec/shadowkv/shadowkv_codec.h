// Executes KV format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_reader.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

class ShadowKvMap;

// Sequences of one call may have different parameters. Borrowed parts outlive it. Executor thread,
// except Create and blocks(), which are the engine thread's, and WorkspaceBytes.
class ShadowKvCodec final : public KvCodec {
 public:
  // Layers that are factored at the same time, at most: few enough that the 16 upper layers of a
  // SwiftKV model of 32 keep several queues busy. Eight took as long, two longer
  // (docs/kernels/shadowkv.md).
  static constexpr int32_t kMostFactored = 4;

  // kResourceExhausted when the back end has no memory for the angles of all positions.
  static absl::StatusOr<std::unique_ptr<ShadowKvCodec>> Create(const CodecContext& context,
                                                               BlockCache& blocks);

  absl::StatusOr<std::unique_ptr<DecodeRows>> Prepare(std::span<const DecodeRow> rows,
                                                      kernels::StepArrays& arrays) override;

  // Before a step with rows of an extension, whose working pages have this layout: memory for what
  // selection writes for `rows` of them at once, and to take their tokens in.
  absl::Status PrepareToExtend(const kernels::DensePageLayout& layout,
                               const ShadowKvCallSizes& sizes,
                               int64_t rows);
  // Keys and values of working tokens, up to ShadowKvDeviceArrays::kAppended of them.
  const WorkingReader& working_reader() const { return working_reader_; }
  // The tokens of the entries' rows to `sequences`, in their layer.
  absl::Status Append(const KvEntries& entries,
                      const kernels::ShadowKvSequence* sequences,
                      int64_t count,
                      size_t workspace_bytes);
  // Joint coefficients that are due, of one sequence in the layers of a group.
  absl::Status CodeJoint(const kernels::ShadowKvSequence* layers,
                         const float* const* key_biases,
                         size_t num_layers,
                         size_t workspace_bytes);
  // Selection for the queries of every sequence's row, into memory of the codec that the next call
  // writes over.
  absl::StatusOr<ShadowKvSelection> Select(const ShadowKvCall& call, const KvQueries& queries);
  // Attention of the rows. `lse`, [rows][heads]: set, queries.out and it hold attention over other
  // keys, which the results are merged with.
  absl::Status Attend(const ShadowKvCall& call,
                      const KvQueries& queries,
                      const ShadowKvSelection& selection,
                      float* lse);

  const CodecContext& context() const { return context_; }
  BlockCache& blocks() const { return blocks_; }
  const kernels::ShadowKvRope& rope() const { return rope_; }
  const float* key_bias(int32_t kv_layer) const;
  struct EncodeTurn {
    kernels::SideRank rank = kernels::SideRank::kFirst;
    int32_t index = 0;
  };
  // Where to code layers that need so much scratch memory: a side queue, the same for the same
  // turn, or where everything else runs.
  absl::StatusOr<kernels::ExecContext> ExecToEncode(const EncodeTurn& turn, size_t workspace_bytes);
  // The executor's threads with a workspace of at least `bytes`; on a device its own.
  const kernels::ExecContext& ExecWith(size_t bytes);
  // Workspace that ops need for a sequence of at most `tokens` tokens, whose upper layers are
  // factored so many at a time. Thread-safe.
  size_t WorkspaceBytes(const ShadowKvMap& map, int64_t tokens, int32_t factored = 1) const;
  // What ops of the format need of it for a layer; 0 factored: another op writes the factors, and
  // this is what the rest needs. Thread-safe.
  size_t CodingBytes(const ShadowKvMap& map,
                     int32_t kv_layer,
                     int64_t tokens,
                     int32_t factored) const;
  // So many upper layers, which are there at once, are to be factored at a time: what a side queue
  // has the memory for. 1: the back end encodes each by itself. Thread-safe.
  int32_t LayersFactored(const ShadowKvMap& map, int64_t tokens) const;

 private:
  ShadowKvCodec(const CodecContext& context, BlockCache& blocks)
      : context_(context),
        blocks_(blocks),
        working_reader_(context, ShadowKvDeviceArrays::kAppended),
        exec_(context.exec) {}
  absl::Status FillRope();
  // Workspace of the ops over a layer, as WorkspaceBytes.
  size_t LayerWorkspaceBytes(const ShadowKvMap& map,
                             int32_t kv_layer,
                             int64_t tokens,
                             int32_t factored) const;
  // Room for what selection writes for a call, by so many query heads.
  absl::StatusOr<ShadowKvSelection> SelectionOf(const ShadowKvCallSizes& sizes,
                                                int64_t sequences,
                                                int64_t heads);

  const CodecContext& context_;
  BlockCache& blocks_;
  kernels::Memory cosines_;
  kernels::Memory sines_;
  kernels::ShadowKvRope rope_;
  kernels::Memory selection_;
  WorkingReader working_reader_;
  // On the host:
  kernels::Buffer workspace_;
  kernels::ExecContext exec_;
};

}  // namespace baton::kv
