// Checks of the ops that touch pages.
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

void CheckPages(const DensePages& pages, ParamChecker& check) {
  check.Positive("pages.layout.page_tokens", pages.layout.page_tokens)
      .Positive("pages.layout.kv_heads", pages.layout.kv_heads)
      .Positive("pages.layout.head_dim", pages.layout.head_dim)
      .PageDType("pages.layout.dtype", pages.layout.dtype)
      .NotNull("pages.base", pages.base);
}

// True when some sequence has rows.
bool CheckSequences(const SequenceRows* sequences, int64_t num_sequences, ParamChecker& check) {
  check.NotNegative("num_sequences", num_sequences);
  if (check.ok() && num_sequences > 0) {
    check.NotNull("sequences", sequences);
  }
  bool any = false;
  for (int64_t s = 0; check.ok() && s < num_sequences; ++s) {
    check.NotNegative("sequence row_begin", sequences[s].row_begin)
        .NotNegative("sequence row_count", sequences[s].row_count);
    if (sequences[s].row_count > 0) {
      check.NotNull("sequence page_table", sequences[s].page_table);
      any = true;
    }
  }
  return any;
}

void CheckPositions(const SequenceRows* sequences,
                    int64_t num_sequences,
                    const int32_t* positions,
                    ParamChecker& check) {
  check.NotNull("positions", positions);
  for (int64_t s = 0; check.ok() && s < num_sequences; ++s) {
    const int64_t end = int64_t{sequences[s].row_begin} + sequences[s].row_count;
    for (int64_t row = sequences[s].row_begin; check.ok() && row < end; ++row) {
      check.NotNegative("position", positions[row]);
    }
  }
}

}  // namespace

absl::Status Validate(const KvWriteParams& params) {
  ParamChecker check("kv_write");
  if (!CheckSequences(params.sequences, params.num_sequences, check) || !check.ok()) {
    return check.status();
  }
  CheckPages(params.pages, check);
  const int64_t width = int64_t{params.pages.layout.kv_heads} * params.pages.layout.head_dim;
  check.NotNull("k", params.k)
      .NotNull("v", params.v)
      .AtLeast("k_stride", params.k_stride, width)
      .AtLeast("v_stride", params.v_stride, width);
  CheckPositions(params.sequences, params.num_sequences, params.positions, check);
  return check.status();
}

absl::Status Validate(const PagedAttentionParams& params) {
  ParamChecker check("paged_attention");
  if (!CheckSequences(params.sequences, params.num_sequences, check) || !check.ok()) {
    return check.status();
  }
  CheckPages(params.pages, check);
  if (!check.ok()) {
    return check.status();
  }
  const int64_t width = params.heads * params.pages.layout.head_dim;
  check.Positive("heads", params.heads)
      .Require(params.heads % params.pages.layout.kv_heads == 0,
               "heads",
               params.heads,
               "must be a multiple of pages.layout.kv_heads")
      .NotNegative("sliding_window", params.sliding_window)
      .NotNull("q", params.q)
      .NotNull("out", params.out)
      .AtLeast("q_stride", params.q_stride, width)
      .AtLeast("out_stride", params.out_stride, width);
  CheckPositions(params.sequences, params.num_sequences, params.positions, check);
  for (int64_t s = 0; check.ok() && s < params.num_sequences; ++s) {
    check.NotNegative("sequence key_begin", params.sequences[s].key_begin)
        .AtLeast("sequence key_end", params.sequences[s].key_end, params.sequences[s].key_begin);
  }
  if (params.merge) {
    check.NotNull("lse", params.lse);
  }
  return check.status();
}

absl::Status Validate(const CopyPagesParams& params) {
  ParamChecker check("copy_pages");
  check.NotNegative("count", params.count);
  if (!check.ok() || params.count == 0) {
    return check.status();
  }
  check.NotNull("source", params.source)
      .NotNull("target", params.target)
      .NotNull("base", params.base)
      .Positive("stride_bytes", params.stride_bytes)
      .Require(params.stride_bytes % 64 == 0,
               "stride_bytes",
               params.stride_bytes,
               "must be a multiple of 64");
  for (int64_t i = 0; check.ok() && i < params.count; ++i) {
    check.NotNegative("source element", params.source[i])
        .NotNegative("target element", params.target[i]);
  }
  return check.status();
}

}  // namespace baton::kernels
