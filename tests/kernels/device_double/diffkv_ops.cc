#include "tests/kernels/device_double/diffkv_ops.h"

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/gathered_op.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/device_double/deferred_queues.h"
#include "tests/kernels/device_double/end_row.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/pointer_checks.h"
#include "tests/kernels/device_double/widened.h"

namespace baton::kernels {
namespace {

using Access = GuardedMemory::Access;

// An op of a prompt: put off where it is called on a side queue.
template <auto kOp, typename Params>
absl::Status SideOp(const ExecContext& context, const Params& params) {
  return DeferredQueues::Do(context, [=] { return kOp(context, params); });
}

absl::Status CheckLayer(const char* op, const DiffKvLayer& layer) {
  return CheckPointers(
      op, {{"layer.page_table", layer.page_table}, {"layer.token_counts", layer.token_counts}});
}

absl::Status CheckLease(const char* op, const DiffKvLease* lease) {
  absl::Status status = CheckPointers(op, {{"lease", lease}});
  status.Update(status.ok() ? CheckPointers(op, {{"lease.ids", lease->ids}}) : status);
  return status;
}

template <DType kDType>
absl::Status Probabilities(const ExecContext& context, const AttentionProbabilitiesParams& params) {
  const Access access;
  absl::Status status = CheckPointers("attention_probabilities",
                                      {{"q", params.q},
                                       {"positions", params.positions},
                                       {"page_table", params.page_table},
                                       {"lse", params.lse, /*optional=*/true},
                                       {"pages.base", params.pages.base},
                                       {"probabilities", params.probabilities}});
  const int64_t width = params.heads * params.pages.layout.head_dim;
  Widened<kDType> q(params.q, params.rows, width, params.q_stride);
  AttentionProbabilitiesParams host = params;
  host.q = q.data();
  host.q_stride = width;
  return status.ok() ? CpuOps().attention_probabilities(context, host) : status;
}

absl::Status Accumulate(const ExecContext& context, const AccumulateScoresParams& params) {
  const Access access;
  absl::Status status = CheckPointers("accumulate_scores",
                                      {{"probabilities", params.probabilities},
                                       {"positions", params.positions},
                                       {"scores", params.scores}});
  return status.ok() ? CpuOps().accumulate_scores(context, params) : status;
}

absl::Status Classify(const ExecContext& context, const DiffKvClassifyParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("diffkv_classify",
                    {{"scores", params.scores},
                     {"policy.unobserved", params.policy.unobserved, /*optional=*/true},
                     {"held", params.held, /*optional=*/true},
                     {"classes", params.classes},
                     {"token_counts", params.token_counts}});
  return status.ok() ? CpuOps().diffkv_classify(context, params) : status;
}

absl::Status AssignPages(const ExecContext& context, const DiffKvAssignPagesParams& params) {
  const Access access;
  absl::Status status = CheckLayer("diffkv_assign_pages", params.layer);
  status.Update(CheckPointers("diffkv_assign_pages", {{"held", params.held, /*optional=*/true}}));
  status.Update(CheckLease("diffkv_assign_pages", params.lease));
  return status.ok() ? CpuOps().diffkv_assign_pages(context, params) : status;
}

absl::Status EncodePrompt(const ExecContext& context, const DiffKvEncodeParams& params) {
  const Access access;
  absl::Status status = CheckPointers("diffkv_encode",
                                      {{"source.base", params.source.base},
                                       {"source_table", params.source_table},
                                       {"classes", params.classes},
                                       {"scores", params.scores},
                                       {"held", params.held, /*optional=*/true},
                                       {"pages.base", params.pages.base}});
  status.Update(CheckLayer("diffkv_encode", params.layer));
  return status.ok() ? CpuOps().diffkv_encode(context, params) : status;
}

absl::Status Sweep(const ExecContext& context, const DiffKvSweepParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("diffkv_sweep", {{"rows", params.rows}, {"pages.base", params.pages.base}});
  for (int64_t i = 0; status.ok() && i < params.num_rows; ++i) {
    const DiffKvAppendRow& row = params.rows[i];
    status = CheckLayer("diffkv_sweep", row.layer);
    status.Update(CheckPointers(
        "diffkv_sweep", {{"policy.unobserved", row.policy.unobserved}, {"actions", row.actions}}));
  }
  return status.ok() ? CpuOps().diffkv_sweep(context, params) : status;
}

absl::Status TakePages(const ExecContext& context, const DiffKvTakePagesParams& params) {
  const Access access;
  absl::Status status = CheckPointers("diffkv_take_pages",
                                      {{"rows", params.rows}, {"pages.base", params.pages.base}});
  for (int64_t i = 0; status.ok() && i < params.layers * params.sequences; ++i) {
    const DiffKvAppendRow& row = params.rows[i];
    status = CheckLayer("diffkv_take_pages", row.layer);
    status.Update(CheckLease("diffkv_take_pages", row.lease));
    status.Update(CheckPointers("diffkv_take_pages", {{"actions", row.actions}}));
  }
  return status.ok() ? CpuOps().diffkv_take_pages(context, params) : status;
}

template <DType kDType>
absl::Status Append(const ExecContext& context, const DiffKvAppendParams& params) {
  const Access access;
  absl::Status status = CheckPointers(
      "diffkv_append",
      {{"k", params.k}, {"v", params.v}, {"rows", params.rows}, {"pages.base", params.pages.base}});
  for (int64_t i = 0; status.ok() && i < params.num_rows; ++i) {
    status = CheckLayer("diffkv_append", params.rows[i].layer);
    status.Update(CheckPointers("diffkv_append", {{"actions", params.rows[i].actions}}));
  }
  if (!status.ok()) {
    return status;
  }
  const DiffKvGeometry& geometry = params.pages.geometry;
  const int64_t width = int64_t{geometry.kv_heads} * geometry.head_dim;
  const int64_t rows = EndRow(params.rows, params.num_rows);
  Widened<kDType> k(params.k, rows, width, params.stride);
  Widened<kDType> v(params.v, rows, width, params.stride);
  DiffKvAppendParams host = params;
  host.k = k.data();
  host.v = v.data();
  host.stride = width;
  return CpuOps().diffkv_append(context, host);
}

absl::Status CheckRow(const DiffKvAttentionRow& row) {
  absl::Status status = CheckLayer("diffkv_attention", row.layer);
  status.Update(CheckPointers("diffkv_attention",
                              {{"lse", row.lse, /*optional=*/true},
                               {"probabilities", row.probabilities, /*optional=*/true}}));
  return status;
}

template <DType kDType>
absl::Status Attention(const ExecContext& context, const DiffKvAttentionParams& params) {
  const Access access;
  absl::Status status = CheckPointers("diffkv_attention",
                                      {{"q", params.q},
                                       {"out", params.out},
                                       {"scratch", params.scratch},
                                       {"rows", params.rows},
                                       {"pages.base", params.pages.base}});
  for (int64_t i = 0; status.ok() && i < params.num_rows; ++i) {
    status = CheckRow(params.rows[i]);
  }
  if (!status.ok()) {
    return status;
  }
  const int64_t width = params.heads * params.pages.geometry.head_dim;
  const int64_t rows = EndRow(params.rows, params.num_rows);
  Widened<kDType> q(params.q, rows, width, params.q_stride);
  Widened<kDType> out(params.out, rows, width, params.out_stride);
  DiffKvAttentionParams host = params;
  host.q = q.data();
  host.out = out.data();
  host.q_stride = host.out_stride = width;
  status = CpuOps().diffkv_attention(context, host);
  for (int64_t i = 0; status.ok() && i < params.num_rows; ++i) {
    out.Store(params.out, params.rows[i].row, int64_t{params.rows[i].row} + 1);
  }
  return status;
}

}  // namespace

template <DType kDType>
void SetDiffKvOps(OpTable& table) {
  table.attention_probabilities = SideOp<Probabilities<kDType>>;
  table.accumulate_scores = SideOp<Accumulate>;
  table.diffkv_classify = SideOp<Classify>;
  table.diffkv_assign_pages = SideOp<AssignPages>;
  table.diffkv_encode = SideOp<EncodePrompt>;
  table.diffkv_sweep = GatheredOp<Sweep>;
  table.diffkv_take_pages = GatheredOp<TakePages>;
  table.diffkv_append = GatheredOp<Append<kDType>>;
  table.diffkv_attention = GatheredOp<Attention<kDType>>;
}

template void SetDiffKvOps<DType::kF32>(OpTable& table);
template void SetDiffKvOps<DType::kBF16>(OpTable& table);

}  // namespace baton::kernels
