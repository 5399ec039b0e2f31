// A step whose sequences have different KV formats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {

// Where one sequence of a step keeps its KV.
struct StepSequenceKv {
  // Dense pages: of every prompt that is being computed, and of sequences of format `dense`.
  DenseTable dense;
  // What the prompt is encoded into, or where a decoding sequence's KV is; null for `dense`.
  EncodedKv* encoded = nullptr;
  // Set: the upper layers leave this worker as hidden states, and only the layers below
  // `full_layers` are encoded.
  HiddenState* hidden = nullptr;
  int32_t full_layers = 0;
  // Of a prefill run: prompt tokens before this are in `encoded` already, and the dense table has
  // pages from extension_begin / page_tokens on only. 0: the whole prompt is computed.
  int64_t extension_begin = 0;
  // Of a prefill run: prompt tokens that steps before have computed.
  int64_t computed_tokens = 0;
  bool prefill = false;
  bool completes_prompt = false;
};

// Sends rows to the format that has them: prompt rows to dense working pages, and their queries to
// the encoder that observes them; decode rows to their format, all sequences of a format at once.
// Rows that extend a sequence are written to working pages and attend through the sequence. A
// prompt that completes in this step is encoded layer by layer, as soon as a layer was read by all.
// Made for one step; executor thread; everything is borrowed.
class PackedStepKv : public StepKv {
 public:
  PackedStepKv(const kernels::OpTable& ops,
               const kernels::ExecContext& exec,
               const kernels::DensePages& pages,
               std::vector<StepSequenceKv> sequences);

  absl::Status Prepare(std::span<const KvRows> tiles, kernels::StepArrays& arrays) override;
  absl::Status Write(const KvRows& rows, const KvEntries& entries) override;
  absl::Status Attend(const KvRows& rows, const KvQueries& queries) override;
  absl::Status WriteHidden(const KvRows& rows, const void* x, int64_t stride) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t kv_layer) override;

  const DenseStepKv& dense() const { return dense_; }

 protected:
  // Encodes this stored layer of a prompt that is complete in it.
  virtual absl::Status EncodeLayer(int32_t sequence, int32_t kv_layer);
  // Sequence `sequence` of the step has been encoded in this stored layer, or, if it leaves as
  // hidden states, has its window scores there.
  virtual absl::Status OnLayerEncoded(int32_t /*sequence*/, int32_t /*kv_layer*/) {
    return absl::OkStatus();
  }

 private:
  // The decode rows of one format in a tile.
  struct Group {
    KvCodec* codec = nullptr;
    std::vector<DecodeRow> rows;
    std::unique_ptr<DecodeRows> prepared;
  };

  // The rows of a tile by what becomes of them.
  struct Tile {
    DenseRuns written;   // to dense pages: prompt rows and those of format `dense`
    DenseRuns attended;  // to dense pages alone: the same but for extensions
    std::vector<RowRun> extensions;
    std::vector<Group> groups;
  };

  absl::StatusOr<Tile> PrepareTile(const KvRows& rows, kernels::StepArrays& arrays);
  void AddToGroup(const KvRows& rows, const RowRun& run, std::vector<Group>& groups) const;
  // A run of prompt rows as codecs take it.
  static PromptRows RowsOf(const KvRows& rows, const RowRun& run) {
    return {.row_begin = run.row_begin,
            .row_count = run.row_count,
            .positions = rows.positions + run.row_begin,
            .op_positions = rows.op_positions + run.row_begin};
  }
  // Tells what prompts have of earlier steps.
  absl::Status TellTokensWritten();
  absl::Status AttendExtensions(const KvRows& rows, const KvQueries& queries);
  absl::Status Observe(const KvRows& rows, const KvQueries& queries);
  // The prompt of a sequence of the step, where ops read it.
  WorkingKv Working(int32_t sequence) const {
    return {.pages = dense_.pages(),
            .table = dense_.op_table(sequence),
            .host_table = dense_.table(sequence)};
  }

  std::vector<StepSequenceKv> sequences_;
  std::vector<DenseTable> tables_;
  DenseStepKv dense_;
  kernels::SideQueues* const paced_;  // null: there are none, or no prompt will be encoded on them
  const kernels::DType activations_;
  std::vector<Tile> tiles_;
};

}  // namespace baton::kv
