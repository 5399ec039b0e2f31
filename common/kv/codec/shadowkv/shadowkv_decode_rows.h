// The decode rows of a step in format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// Rows of all layers, and the joint coefficients that the step's tokens make due, are described
// before the step. Executor thread.
class ShadowKvDecodeRows final : public DecodeRows {
 public:
  // Everything is borrowed for the step.
  ShadowKvDecodeRows(ShadowKvCodec& codec,
                     std::span<const DecodeRow> rows,
                     kernels::StepArrays& arrays);

  absl::Status Append(const KvEntries& entries) override;
  absl::Status Attend(const KvQueries& queries) override;

  // Of the calls of each stored layer.
  const std::vector<ShadowKvCallSizes>& sizes() const { return sizes_; }

 private:
  // Joint coefficients of one sequence, due once the step's token is in the group's last layer.
  struct DueBlock {
    int32_t last_layer = 0;
    ShadowKvJointBlock block;
    // Where ops read them.
    const kernels::ShadowKvSequence* layers = nullptr;
    const float* const* key_biases = nullptr;
  };

  void AddLayer(int32_t kv_layer);
  void AddDueBlocks(kernels::StepArrays& arrays);
  absl::Status CodeDueBlocks(int32_t kv_layer);

  ShadowKvCodec& codec_;
  const std::span<const DecodeRow> rows_;
  size_t workspace_bytes_ = 0;
  std::vector<ShadowKvCallSizes> sizes_;
  // [layers][rows], and where ops read them.
  std::vector<kernels::ShadowKvSequence> sequences_;
  const kernels::ShadowKvSequence* op_sequences_ = nullptr;
  std::vector<DueBlock> due_blocks_;
};

}  // namespace baton::kv
