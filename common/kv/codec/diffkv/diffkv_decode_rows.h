// The decode rows of a step in format `diffkv`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {

// Rows of all layers are described before the step. Executor thread.
class DiffKvDecodeRows final : public DecodeRows {
 public:
  // Everything is borrowed for the step.
  DiffKvDecodeRows(DiffKvCodec& codec,
                   std::span<const DecodeRow> rows,
                   kernels::StepArrays& arrays);

  absl::Status Append(const KvEntries& entries) override;
  absl::Status Attend(const KvQueries& queries) override;

  // Scratch that Attend takes from the codec.
  size_t scratch_floats() const { return scratch_floats_; }

 private:
  void AddLayer(int32_t kv_layer);
  // What new tokens do in all layers, and their pages, at the step's first append: that follows
  // from what the step before left.
  absl::Status Begin();

  DiffKvCodec& codec_;
  const std::span<const DecodeRow> rows_;
  size_t scratch_floats_ = 0;
  bool observes_ = false;  // some row sweeps, and its query scores
  bool begun_ = false;
  // [layers][rows], and where ops read them.
  std::vector<kernels::DiffKvAppendRow> append_rows_;
  std::vector<kernels::DiffKvAttentionRow> attention_rows_;
  const kernels::DiffKvAppendRow* op_append_rows_ = nullptr;
  const kernels::DiffKvAttentionRow* op_attention_rows_ = nullptr;
};

}  // namespace baton::kv
