// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// The longer tails begin with the bytes of the shorter ones.
void ShadowKvSequence::MoveTails(std::byte* target, TailMap tails) {
  for (size_t part = 0; part + 1 < tails.begins.size(); ++part) {
    const size_t kept = std::min(tails.begins[part + 1] - tails.begins[part],
                                 tail_map_.begins[part + 1] - tail_map_.begins[part]);
    std::memmove(target + tails.begins[part], tail(part), kept);
  }
  tails_ = target;
  tail_map_ = std::move(tails);
}

// Gives back what lies behind the first `bytes` of a run.
void ShadowKvSequence::CutRun(RunPool::Run& run, size_t bytes) {
  const int64_t kept = RunPool::UnitsFor(static_cast<int64_t>(bytes));
  if (kept < run.units) {
    codec_.pool().Release({.first_unit = run.first_unit + kept, .units = run.units - kept});
    run.units = kept;
  }
}

bool ShadowKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  BATON_CHECK(prompt_tokens > held_.tokens());
  const int64_t behind = prompt_tokens + max_tokens - this->prompt_tokens();
  TailMap tails = map_.Tails(behind);
  const std::optional<RunPool::Run> run =
      codec_.pool().Allocate(static_cast<int64_t>(tails.bytes()));
  if (!run.has_value()) {
    return false;
  }
  MoveTails(codec_.pool().bytes(*run).data(), std::move(tails));
  if (tail_run_.units > 0) {
    codec_.pool().Release(tail_run_);
  } else {
    CutRun(run_, map_.prompt_bytes());
  }
  tail_run_ = *run;
  max_tokens_ = behind;
  extension_begin_ = held_.tokens();
  std::ranges::fill(encoded_layers_, 0);
  held_.Await(prompt_tokens);
  workspace_bytes_ = codec_.WorkspaceBytes(map_, prompt_tokens + max_tokens);
  return true;
}

void ShadowKvSequence::Shrink() {
  TailMap tails = map_.Tails(tokens_behind());
  const size_t bytes = tails.bytes();
  if (bytes >= tail_map_.bytes()) {
    return;
  }
  MoveTails(tails_, std::move(tails));
  max_tokens_ = tokens_behind();
  if (tail_run_.units == 0) {
    CutRun(run_, map_.prompt_bytes() + bytes);
  } else {
    CutRun(tail_run_, bytes);
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
  std::vector<float> lse(static_cast<size_t>(rows.row_count) * static_cast<size_t>(queries.heads));
  BATON_RETURN_IF_ERROR(
      AttendWorkingKeys(codec_.context(), working, rows, queries, extension_begin_, lse));
  for (int32_t row = 0; row < rows.row_count; ++row) {
    attended_extension_ +=
        map_.layout(0).config.kv_heads * (rows.positions[row] + 1 - extension_begin_);
  }
  return codec_.AttendBehind(
      *this, static_cast<int32_t>(extension_begin_ - 1), rows, queries, lse.data());
}

}  // namespace baton::kv
