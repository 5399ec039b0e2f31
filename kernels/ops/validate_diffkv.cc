// Checks of the ops of KV format `diffkv`.
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/check_diffkv_geometry.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

void CheckDensePages(const DensePages& pages, ParamChecker& check) {
  check.Positive("pages.layout.page_tokens", pages.layout.page_tokens)
      .Positive("pages.layout.kv_heads", pages.layout.kv_heads)
      .Positive("pages.layout.head_dim", pages.layout.head_dim)
      .FloatDType("pages.layout.dtype", pages.layout.dtype)
      .NotNull("pages.base", pages.base);
}

void CheckPages(const DiffKvPages& pages, ParamChecker& check) {
  check.NotNull("pages.base", pages.base);
  CheckDiffKvGeometry(pages.geometry, check);
}

void CheckLayer(const DiffKvGeometry& geometry, const DiffKvLayer& layer, ParamChecker& check) {
  check.NotNull("layer.page_table", layer.page_table)
      .NotNull("layer.token_counts", layer.token_counts)
      .Positive("layer.columns", layer.columns);
  for (int32_t i = 0; check.ok() && i < geometry.kv_heads * kDiffKvTiers; ++i) {
    check.NotNegative("layer.token_counts element", layer.token_counts[i]);
  }
}

// Also that the pages held fit the page table.
void CheckHeldLayer(const DiffKvGeometry& geometry, const DiffKvLayer& layer, ParamChecker& check) {
  CheckLayer(geometry, layer, check);
  for (int32_t head = 0; check.ok() && head < geometry.kv_heads; ++head) {
    int32_t pages = 0;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      pages += geometry.pages_for(tier, layer.token_counts[head * kDiffKvTiers + tier]);
    }
    check.AtLeast("layer.columns", layer.columns, pages);
  }
}

void CheckPolicy(const DiffKvPolicy& policy, ParamChecker& check) {
  check.NotNegative("policy.window", policy.window)
      .Require(policy.window <= kDiffKvWindowQueries,
               "policy.window",
               policy.window,
               "must be at most 64")
      .NotNegative("policy.sinks", policy.sinks)
      .NotNegative("policy.unobserved_count", policy.unobserved_count);
  if (check.ok() && policy.unobserved_count > 0) {
    check.NotNull("policy.unobserved", policy.unobserved);
  }
  int32_t end = 0;
  for (int32_t i = 0; check.ok() && i < policy.unobserved_count; ++i) {
    const UnobservedRange& range = policy.unobserved[i];
    check.AtLeast("policy.unobserved begin", range.begin, end)
        .AtLeast("policy.unobserved end", range.end, range.begin)
        .Require(range.observed_shift >= 0 && range.observed_shift <= UnobservedRange::kAll,
                 "policy.unobserved observed_shift",
                 range.observed_shift,
                 "must be in [0, 31]");
    end = range.end;
  }
  if (check.ok() && !(policy.alpha_low >= 0.0f && policy.alpha_high >= policy.alpha_low)) {
    check.Require(false,
                  "policy.alpha_low",
                  static_cast<int64_t>(policy.alpha_low),
                  "must be in [0, alpha_high]");
  }
}

void CheckLease(const DiffKvLease* lease, ParamChecker& check) {
  check.NotNull("lease", lease);
  if (!check.ok()) return;
  check.NotNegative("lease.used", lease->used).AtLeast("lease.count", lease->count, lease->used);
  if (lease->count > 0) {
    check.NotNull("lease.ids", lease->ids);
  }
}

// Actions of a row that sweeps are such that its counts allow.
void CheckActions(const DiffKvAppendRow& row, int32_t kv_heads, ParamChecker& check) {
  check.NotNull("row actions", row.actions);
  for (int32_t head = 0; check.ok() && row.sweep && head < kv_heads; ++head) {
    const DiffKvAction& action = row.actions[head];
    const int32_t high = DiffKvCount(row.layer, head, kDiffKvHigh);
    const int32_t low = DiffKvCount(row.layer, head, kDiffKvLow);
    check.Require(FitsCounts(action, high, low),
                  "row actions high_slot",
                  action.high_slot,
                  "must be what diffkv_sweep decided for the tokens stored");
  }
}

// Slots of actions are counted and have pages.
void CheckPlaces(const DiffKvAppendRow& row, int32_t kv_heads, ParamChecker& check) {
  check.NotNull("row actions", row.actions);
  for (int32_t head = 0; check.ok() && head < kv_heads; ++head) {
    const DiffKvAction& action = row.actions[head];
    const bool high = action.high_slot >= 0 && action.pages[kDiffKvHigh] >= 0 &&
                      action.high_slot < DiffKvCount(row.layer, head, kDiffKvHigh);
    const bool low =
        action.demoted_to == -1 || (action.demoted_to >= 0 && action.pages[kDiffKvLow] >= 0 &&
                                    action.demoted_to < DiffKvCount(row.layer, head, kDiffKvLow));
    check.Require(high && low,
                  "row actions high_slot",
                  action.high_slot,
                  "must have a page by diffkv_take_pages");
  }
}

// Positions are in [first, first + stride).
void CheckPositions(
    const int32_t* positions, int64_t rows, int64_t first, int64_t stride, ParamChecker& check) {
  check.NotNull("positions", positions);
  for (int64_t row = 0; check.ok() && row < rows; ++row) {
    check.AtLeast("positions element", positions[row], first)
        .InRange("positions", row, positions[row], first + stride);
  }
}

// Counts `held` are within the layer's; null: no counts.
void CheckHeldCounts(const DiffKvGeometry& geometry,
                     const DiffKvLayer& layer,
                     const int32_t* held,
                     ParamChecker& check) {
  for (int32_t i = 0; held != nullptr && check.ok() && i < geometry.kv_heads * kDiffKvTiers; ++i) {
    check.NotNegative("held element", held[i])
        .Require(held[i] <= layer.token_counts[i],
                 "held element",
                 held[i],
                 "must not be above layer.token_counts");
  }
}

}  // namespace

absl::Status Validate(const AttentionProbabilitiesParams& params) {
  ParamChecker check("attention_probabilities");
  check.NotNegative("rows", params.rows);
  if (!check.ok() || params.rows == 0) {
    return check.status();
  }
  CheckDensePages(params.pages, check);
  if (!check.ok()) {
    return check.status();
  }
  check.Positive("heads", params.heads)
      .Require(params.heads % params.pages.layout.kv_heads == 0,
               "heads",
               params.heads,
               "must be a multiple of pages.layout.kv_heads")
      .NotNegative("sliding_window", params.sliding_window)
      .NotNegative("key_begin", params.key_begin)
      .NotNull("q", params.q)
      .AtLeast("q_stride", params.q_stride, params.heads * params.pages.layout.head_dim)
      .NotNull("page_table", params.page_table)
      .NotNull("probabilities", params.probabilities);
  CheckPositions(params.positions, params.rows, params.key_begin, params.probability_stride, check);
  return check.status();
}

absl::Status Validate(const AccumulateScoresParams& params) {
  ParamChecker check("accumulate_scores");
  check.NotNegative("rows", params.rows).NotNegative("kv_heads", params.kv_heads);
  if (!check.ok() || params.rows == 0 || params.kv_heads == 0) {
    return check.status();
  }
  check.NotNull("probabilities", params.probabilities)
      .NotNull("scores", params.scores)
      .NotNegative("first_token", params.first_token);
  CheckPositions(
      params.positions, params.rows, params.first_token, params.probability_stride, check);
  for (int64_t row = 0; check.ok() && row < params.rows; ++row) {
    check.AtLeast("score_stride",
                  params.score_stride,
                  int64_t{params.positions[row]} + 1 - params.first_token);
  }
  return check.status();
}

absl::Status Validate(const DiffKvClassifyParams& params) {
  ParamChecker check("diffkv_classify");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token)
      .NotNegative("kv_heads", params.kv_heads);
  CheckPolicy(params.policy, check);
  if (!check.ok() || params.kv_heads == 0) {
    return check.status();
  }
  check.NotNull("token_counts", params.token_counts);
  if (params.tokens > params.first_token) {
    check.NotNull("scores", params.scores)
        .NotNull("classes", params.classes)
        .AtLeast("score_stride", params.score_stride, params.tokens - params.first_token);
  }
  return check.status();
}

absl::Status Validate(const DiffKvAssignPagesParams& params) {
  ParamChecker check("diffkv_assign_pages");
  CheckDiffKvGeometry(params.geometry, check);
  if (check.ok()) CheckLayer(params.geometry, params.layer, check);
  if (check.ok()) CheckHeldCounts(params.geometry, params.layer, params.held, check);
  CheckLease(params.lease, check);
  return check.status();
}

absl::Status Validate(const DiffKvReleasePagesParams& params) {
  ParamChecker check("diffkv_release_pages");
  CheckDiffKvGeometry(params.geometry, check);
  if (check.ok()) CheckHeldLayer(params.geometry, params.layer, check);
  check.NotNull("ids", params.ids).NotNull("count", params.count);
  return check.status();
}

absl::Status Validate(const DiffKvEncodeParams& params) {
  ParamChecker check("diffkv_encode");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token);
  if (!check.ok() || params.tokens == params.first_token) {
    return check.status();
  }
  CheckDensePages(params.source, check);
  CheckPages(params.pages, check);
  check.NotNull("source_table", params.source_table)
      .NotNull("classes", params.classes)
      .NotNull("scores", params.scores)
      .AtLeast("score_stride", params.score_stride, params.tokens - params.first_token)
      .Require(params.source.layout.kv_heads == params.pages.geometry.kv_heads,
               "source.layout.kv_heads",
               params.source.layout.kv_heads,
               "must be the pages' kv_heads")
      .Require(params.source.layout.head_dim == params.pages.geometry.head_dim,
               "source.layout.head_dim",
               params.source.layout.head_dim,
               "must be the pages' head_dim");
  if (check.ok()) CheckHeldLayer(params.pages.geometry, params.layer, check);
  if (check.ok()) CheckHeldCounts(params.pages.geometry, params.layer, params.held, check);
  return check.status();
}

absl::Status Validate(const DiffKvSweepParams& params) {
  ParamChecker check("diffkv_sweep");
  check.NotNegative("num_rows", params.num_rows);
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckPages(params.pages, check);
  check.NotNull("rows", params.rows);
  for (int64_t r = 0; check.ok() && r < params.num_rows; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    CheckHeldLayer(params.pages.geometry, row.layer, check);
    CheckPolicy(row.policy, check);
    check.NotNegative("row position", row.position).NotNull("row actions", row.actions);
  }
  return check.status();
}

absl::Status Validate(const DiffKvTakePagesParams& params) {
  ParamChecker check("diffkv_take_pages");
  check.NotNegative("layers", params.layers).NotNegative("sequences", params.sequences);
  if (!check.ok() || params.layers == 0 || params.sequences == 0) {
    return check.status();
  }
  CheckPages(params.pages, check);
  check.NotNull("rows", params.rows);
  for (int64_t r = 0; check.ok() && r < params.layers * params.sequences; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    CheckHeldLayer(params.pages.geometry, row.layer, check);
    if (check.ok()) CheckActions(row, params.pages.geometry.kv_heads, check);
    CheckLease(row.lease, check);
    check.Require(row.lease == params.rows[r % params.sequences].lease,
                  "rows element",
                  r,
                  "must have its sequence's lease");
  }
  return check.status();
}

absl::Status Validate(const DiffKvAppendParams& params) {
  ParamChecker check("diffkv_append");
  check.NotNegative("num_rows", params.num_rows);
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckPages(params.pages, check);
  check.NotNull("k", params.k)
      .NotNull("v", params.v)
      .AtLeast("stride",
               params.stride,
               int64_t{params.pages.geometry.kv_heads} * params.pages.geometry.head_dim)
      .NotNull("rows", params.rows);
  for (int64_t r = 0; check.ok() && r < params.num_rows; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    CheckHeldLayer(params.pages.geometry, row.layer, check);
    check.NotNegative("row row", row.row).NotNegative("row position", row.position);
    if (check.ok()) CheckPlaces(row, params.pages.geometry.kv_heads, check);
  }
  return check.status();
}

absl::Status Validate(const DiffKvAttentionParams& params) {
  ParamChecker check("diffkv_attention");
  check.NotNegative("num_rows", params.num_rows);
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckPages(params.pages, check);
  if (!check.ok()) {
    return check.status();
  }
  check.NotNull("rows", params.rows)
      .Positive("heads", params.heads)
      .Require(params.heads % params.pages.geometry.kv_heads == 0,
               "heads",
               params.heads,
               "must be a multiple of pages.geometry.kv_heads")
      .NotNegative("sliding_window", params.sliding_window)
      .NotNull("q", params.q)
      .AtLeast("q_stride", params.q_stride, params.heads * params.pages.geometry.head_dim)
      .NotNull("out", params.out)
      .AtLeast("out_stride", params.out_stride, params.heads * params.pages.geometry.head_dim)
      .NotNull("scratch", params.scratch);
  for (int64_t r = 0; check.ok() && r < params.num_rows; ++r) {
    const DiffKvAttentionRow& row = params.rows[r];
    CheckHeldLayer(params.pages.geometry, row.layer, check);
    check.NotNegative("row row", row.row)
        .NotNegative("row position", row.position)
        .NotNegative("row scratch_begin", row.scratch_begin)
        .Require(row.scratch_begin % kDiffKvScratchUnit == 0,
                 "row scratch_begin",
                 row.scratch_begin,
                 "must be a multiple of 4");
    for (int32_t head = 0; check.ok() && head < params.pages.geometry.kv_heads; ++head) {
      const int32_t* counts = row.layer.token_counts + head * kDiffKvTiers;
      check.AtLeast("row probability_stride",
                    row.probability_stride,
                    int64_t{counts[kDiffKvHigh]} + counts[kDiffKvLow]);
    }
  }
  return check.status();
}

}  // namespace baton::kernels
