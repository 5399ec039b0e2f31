// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

bool ShadowKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  BATON_CHECK(prompt_tokens > held_.tokens());
  const int64_t behind = prompt_tokens + max_tokens - this->prompt_tokens();
  TailMap tails = map_.Tails(behind);
  const std::optional<RunPool::Run> run = memory_->TakeFor(tails);
  if (!run.has_value()) {
    return false;
  }
  if (values_ != nullptr) {
    TailMap value_tails = map_.ValueTails(behind);
    const std::optional<RunPool::Run> value_run = values_->TakeFor(value_tails);
    if (!value_run.has_value()) {
      memory_->GiveBack(*run);
      return false;
    }
    values_->Grow(*value_run, std::move(value_tails));
  }
  memory_->Grow(*run, std::move(tails));
  max_tokens_ = behind;
  extension_begin_ = held_.tokens();
  std::ranges::fill(encoded_layers_, 0);
  held_.Await(prompt_tokens);
  workspace_bytes_ = codec_.WorkspaceBytes(map_, prompt_tokens + max_tokens);
  return true;
}

void ShadowKvSequence::Shrink() {
  if (tokens_behind() >= max_tokens_) {
    return;
  }
  max_tokens_ = tokens_behind();
  memory_->Shrink(map_.Tails(max_tokens_));
  if (values_ != nullptr) {
    values_->Shrink(map_.ValueTails(max_tokens_));
  }
}

absl::Status ShadowKvSequence::AppendWorkingToken(const WorkingKv& working,
                                                  int32_t kv_layer,
                                                  int64_t position) {
  const int64_t width = map_.layout(kv_layer).config.width();
  std::vector<float> key(static_cast<size_t>(width));
  std::vector<float> value(static_cast<size_t>(width));
  ReadWorkingTokens(working, kv_layer, position, 1, key, value);
  const kernels::ShadowKvSequence sequence = AtStep(kv_layer, static_cast<int32_t>(position));
  return codec_.context().ops->shadowkv_append(codec_.ExecWith(workspace_bytes_),
                                               {.k = key.data(),
                                                .k_stride = width,
                                                .v = value.data(),
                                                .v_stride = width,
                                                .sequences = &sequence,
                                                .num_sequences = 1,
                                                .rope = codec_.rope(),
                                                .key_bias = codec_.key_bias(kv_layer)});
}

absl::Status ShadowKvSequence::CodeJoint(int32_t kv_layer, int32_t position) {
  const int32_t index = map_.group_of(kv_layer);
  if (index < 0) {
    return absl::OkStatus();
  }
  const std::optional<ShadowKvJointBlock> due =
      JointBlockDue(map_.groups()[static_cast<size_t>(index)], position);
  return due.has_value()
             ? codec_.CodeJoint(
                   due->layers.data(), due->key_biases.data(), due->layers.size(), workspace_bytes_)
             : absl::OkStatus();
}

// Like tokens that were generated, one after another. Layers that share coefficients take in each
// token together: exact keys of all of them are needed where a block is coded.
absl::Status ShadowKvSequence::AppendWorking(const WorkingKv& working,
                                             int32_t layer_begin,
                                             int32_t layer_end) {
  for (int64_t position = extension_begin_; position < held_.awaited(); ++position) {
    for (int32_t kv_layer = layer_begin; kv_layer < layer_end; ++kv_layer) {
      BATON_RETURN_IF_ERROR(AppendWorkingToken(working, kv_layer, position));
    }
    BATON_RETURN_IF_ERROR(CodeJoint(layer_begin, static_cast<int32_t>(position)));
  }
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::AttendExtension(const WorkingKv& working,
                                               const PromptRows& rows,
                                               const KvQueries& queries) {
  float* const lse = queries.lse + int64_t{rows.row_begin} * queries.heads;
  const std::vector<kernels::SequenceRows> by_layer = WorkingRows(working, rows, extension_begin_);
  BATON_RETURN_IF_ERROR(AttendDenseKeys(
      codec_.context(), working.pages, rows, queries, by_layer.data() + queries.kv_layer, lse));
  for (int32_t row = 0; row < rows.row_count; ++row) {
    attended_extension_ +=
        map_.layout(0).config.kv_heads * (rows.positions[row] + 1 - extension_begin_);
  }
  return codec_.AttendBehind(*this, static_cast<int32_t>(extension_begin_ - 1), rows, queries, lse);
}

}  // namespace baton::kv
