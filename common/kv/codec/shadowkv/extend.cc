// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

int64_t ShadowKvSequence::PromptBytes() const {
  return layers_ * static_cast<int64_t>(layout_.bytes);
}

// The longer tails begin with the bytes of the shorter ones.
void ShadowKvSequence::MoveTails(std::byte* target, size_t tail_bytes) {
  const size_t kept = std::min(tail_bytes, tail_bytes_);
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    std::memmove(target + static_cast<size_t>(kv_layer) * tail_bytes, tail(kv_layer), kept);
  }
  tails_ = target;
  tail_bytes_ = tail_bytes;
}

// Gives back what lies behind the first `bytes` of a run.
void ShadowKvSequence::CutRun(RunPool::Run& run, int64_t bytes) {
  const int64_t kept = RunPool::UnitsFor(bytes);
  if (kept < run.units) {
    codec_.pool().Release({.first_unit = run.first_unit + kept, .units = run.units - kept});
    run.units = kept;
  }
}

bool ShadowKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  BATON_CHECK(prompt_tokens > held_.tokens());
  const int64_t behind = prompt_tokens + max_tokens - layout_.prompt_tokens;
  const size_t tail_bytes = TailBytes(layout_, behind);
  const std::optional<RunPool::Run> run =
      codec_.pool().Allocate(layers_ * static_cast<int64_t>(tail_bytes));
  if (!run.has_value()) {
    return false;
  }
  MoveTails(codec_.pool().bytes(*run).data(), tail_bytes);
  if (tail_run_.units > 0) {
    codec_.pool().Release(tail_run_);
  } else {
    CutRun(run_, PromptBytes());
  }
  tail_run_ = *run;
  max_tokens_ = behind;
  extension_begin_ = held_.tokens();
  held_.Await(prompt_tokens);
  workspace_bytes_ = LargestWorkspace(prompt_tokens + max_tokens);
  return true;
}

void ShadowKvSequence::Shrink() {
  const int64_t behind = held_.tokens() - layout_.prompt_tokens;
  const size_t tail_bytes = TailBytes(layout_, behind);
  if (tail_bytes >= tail_bytes_) {
    return;
  }
  const int64_t bytes = layers_ * static_cast<int64_t>(tail_bytes);
  MoveTails(tails_, tail_bytes);
  max_tokens_ = behind;
  if (tail_run_.units == 0) {
    CutRun(run_, PromptBytes() + bytes);
  } else {
    CutRun(tail_run_, bytes);
  }
}

// Like tokens that were generated, one after another.
absl::Status ShadowKvSequence::AppendWorking(const WorkingKv& working, int32_t kv_layer) {
  const auto width = static_cast<size_t>(layout_.config.width());
  std::vector<float> key(width);
  std::vector<float> value(width);
  for (int64_t position = extension_begin_; position < held_.awaited(); ++position) {
    ReadWorkingTokens(working, kv_layer, position, 1, key, value);
    const kernels::ShadowKvSequence sequence = AtStep(kv_layer, static_cast<int32_t>(position));
    BATON_RETURN_IF_ERROR(
        codec_.context().ops->shadowkv_append(codec_.ExecWith(workspace_bytes_),
                                              {.k = key.data(),
                                               .k_stride = layout_.config.width(),
                                               .v = value.data(),
                                               .v_stride = layout_.config.width(),
                                               .sequences = &sequence,
                                               .num_sequences = 1,
                                               .rope = codec_.rope(),
                                               .key_bias = codec_.key_bias(kv_layer)}));
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
    counters_.attended_tokens +=
        layout_.config.kv_heads * (rows.positions[row] + 1 - extension_begin_);
  }
  return codec_.AttendBehind(
      *this, static_cast<int32_t>(extension_begin_ - 1), rows, queries, lse.data());
}

}  // namespace baton::kv
