#include "tests/kernels/device_double/device_double.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/gathered_op.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/matmul_parts.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "tests/kernels/device_double/diffkv_ops.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/pointer_checks.h"
#include "tests/kernels/device_double/shadowkv_ops.h"
#include "tests/kernels/device_double/widened.h"

namespace baton::kernels {
namespace {

using Access = GuardedMemory::Access;

absl::Status CheckSequences(const char* op, const SequenceRows* sequences, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (absl::Status status =
            CheckPointers(op, {{"sequences", sequences}, {"page_table", sequences[i].page_table}});
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status PackMatrix(const ExecContext& context, const PackMatrixParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("pack_matrix", {{"source", params.source}, {"target", params.target}});
  return status.ok() ? CpuOps().pack_matrix(context, params) : status;
}

template <DType kDType>
absl::Status Embed(const ExecContext& context, const EmbedParams& params) {
  const Access access;
  absl::Status status = CheckPointers(
      "embed", {{"table", params.table}, {"token_ids", params.token_ids}, {"out", params.out}});
  Widened<kDType> out(nullptr, params.rows, params.dim, params.dim);
  EmbedParams host = params;
  host.out = out.data();
  status.Update(status.ok() ? CpuOps().embed(context, host) : status);
  if (status.ok()) {
    out.Store(params.out);
  }
  return status;
}

template <DType kDType>
absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("rms_norm", {{"x", params.x}, {"weight", params.weight}, {"out", params.out}});
  const int64_t width = params.groups * params.dim;
  Widened<kDType> x(params.x, params.rows, width, params.x_stride);
  Widened<kDType> out(nullptr, params.rows, width, params.out_stride);
  RmsNormParams host = params;
  host.x = x.data();
  host.out = out.data();
  host.x_stride = host.out_stride = width;
  status.Update(status.ok() ? CpuOps().rms_norm(context, host) : status);
  if (status.ok()) {
    out.Store(params.out);
  }
  return status;
}

template <DType kDType>
absl::Status Multiply(const ExecContext& context, const MatmulParams& params) {
  const Access access;
  absl::Status status = CheckPointers("matmul",
                                      {{"x", params.x},
                                       {"weight.data", params.weight.data},
                                       {"bias", params.bias, /*optional=*/true},
                                       {"out", params.out}});
  const int64_t width = params.weight.out_features;
  Widened<kDType> x(params.x, params.rows, params.weight.in_features, params.x_stride);
  Widened<kDType> out(
      params.accumulate ? params.out : nullptr, params.rows, width, params.out_stride);
  MatmulParams host = params;
  host.x = x.data();
  host.x_stride = params.weight.in_features;
  if (!params.wide) {
    host.out = out.data();
    host.out_stride = width;
  }
  status.Update(status.ok() ? CpuOps().matmul(context, host) : status);
  if (status.ok() && !params.wide) {
    out.Store(params.out);
  }
  return status;
}

absl::Status RopeAngles(const ExecContext& context, const RopeAnglesParams& params) {
  const Access access;
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  absl::Status status = CheckPointers("rope_angles",
                                      {{"positions", params.positions},
                                       {"inverse_frequencies", params.inverse_frequencies},
                                       {"cosines", params.cosines},
                                       {"sines", params.sines}});
  return status.ok() ? CpuOps().rope_angles(context, params) : status;
}

template <DType kDType>
absl::Status Rope(const ExecContext& context, const RopeParams& params) {
  const Access access;
  absl::Status status = CheckPointers(
      "rope", {{"x", params.x}, {"cosines", params.cosines}, {"sines", params.sines}});
  const int64_t width = params.heads * 2 * params.half_dim;
  Widened<kDType> x(params.x, params.rows, width, params.x_stride);
  RopeParams host = params;
  host.x = x.data();
  host.x_stride = width;
  status.Update(status.ok() ? CpuOps().rope(context, host) : status);
  if (status.ok()) {
    x.Store(params.x);
  }
  return status;
}

int64_t RowsOf(const SequenceRows* sequences, int64_t count) {
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) {
    rows = std::max<int64_t>(rows, int64_t{sequences[i].row_begin} + sequences[i].row_count);
  }
  return rows;
}

template <DType kDType>
absl::Status KvWrite(const ExecContext& context, const KvWriteParams& params) {
  const Access access;
  absl::Status status = CheckPointers("kv_write",
                                      {{"k", params.k},
                                       {"v", params.v},
                                       {"positions", params.positions},
                                       {"sequences", params.sequences},
                                       {"pages.base", params.pages.base}});
  if (!status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  const int64_t rows = RowsOf(params.sequences, params.num_sequences);
  Widened<kDType> k(params.k, rows, width, params.k_stride);
  Widened<kDType> v(params.v, rows, width, params.v_stride);
  KvWriteParams host = params;
  host.k = k.data();
  host.v = v.data();
  host.k_stride = host.v_stride = width;
  status = CheckSequences("kv_write", params.sequences, params.num_sequences);
  return status.ok() ? CpuOps().kv_write(context, host) : status;
}

template <DType kDType>
absl::Status PagedAttention(const ExecContext& context, const PagedAttentionParams& params) {
  const Access access;
  absl::Status status = CheckPointers("paged_attention",
                                      {{"q", params.q},
                                       {"positions", params.positions},
                                       {"sequences", params.sequences},
                                       {"pages.base", params.pages.base},
                                       {"out", params.out},
                                       {"lse", params.lse, /*optional=*/true}});
  if (!status.ok()) {
    return status;
  }
  const int64_t width = params.heads * params.pages.layout.head_dim;
  const int64_t rows = RowsOf(params.sequences, params.num_sequences);
  Widened<kDType> q(params.q, rows, width, params.q_stride);
  Widened<kDType> out(params.merge ? params.out : nullptr, rows, width, params.out_stride);
  PagedAttentionParams host = params;
  host.q = q.data();
  host.out = out.data();
  host.q_stride = host.out_stride = width;
  status = CheckSequences("paged_attention", params.sequences, params.num_sequences);
  status.Update(status.ok() ? CpuOps().paged_attention(context, host) : status);
  for (int64_t i = 0; status.ok() && i < params.num_sequences; ++i) {
    const SequenceRows& sequence = params.sequences[i];
    out.Store(params.out, sequence.row_begin, int64_t{sequence.row_begin} + sequence.row_count);
  }
  return status;
}

template <DType kDType>
absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("silu_mul", {{"gate_up", params.gate_up}, {"out", params.out}});
  Widened<kDType> gate_up(params.gate_up, params.rows, 2 * params.dim, params.gate_up_stride);
  Widened<kDType> out(nullptr, params.rows, params.dim, params.out_stride);
  SiluMulParams host = params;
  host.gate_up = gate_up.data();
  host.out = out.data();
  host.gate_up_stride = 2 * params.dim;
  host.out_stride = params.dim;
  status.Update(status.ok() ? CpuOps().silu_mul(context, host) : status);
  if (status.ok()) {
    out.Store(params.out);
  }
  return status;
}

template <DType kDType>
absl::Status Matmul(const ExecContext& context, const MatmulParams& params) {
  return RunMatmulParts<RmsNorm<kDType>, Multiply<kDType>, Rope<kDType>, SiluMul<kDType>>(params,
                                                                                          context);
}

template <DType kDType>
absl::Status GatherRows(const ExecContext& context, const GatherRowsParams& params) {
  const Access access;
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  absl::Status status = CheckPointers(
      "gather_rows", {{"x", params.x}, {"row_index", params.row_index}, {"out", params.out}});
  if (!status.ok()) {
    return status;
  }
  const int64_t sources = *std::max_element(params.row_index, params.row_index + params.rows) + 1;
  Widened<kDType> x(params.x, sources, params.dim, params.x_stride);
  Widened<kDType> out(nullptr, params.rows, params.dim, params.out_stride);
  GatherRowsParams host = params;
  host.x = x.data();
  host.out = out.data();
  host.x_stride = host.out_stride = params.dim;
  status = CpuOps().gather_rows(context, host);
  if (status.ok()) {
    out.Store(params.out);
  }
  return status;
}

// The pool may be of pinned host memory, as that of values apart is.
absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("copy_pages", {{"source", params.source}, {"target", params.target}});
  return status.ok() ? CpuOps().copy_pages(context, params) : status;
}

absl::Status TopLogits(const ExecContext& context, const TopLogitsParams& params) {
  const Access access;
  absl::Status status = CheckPointers("top_logits",
                                      {{"logits", params.logits},
                                       {"ids", params.ids},
                                       {"values", params.values},
                                       {"log_sums", params.log_sums}});
  return status.ok() ? CpuOps().top_logits(context, params) : status;
}

template <DType kDType>
absl::Status HiddenEncode(const ExecContext& context, const HiddenEncodeParams& params) {
  const Access access;
  absl::Status status = CheckPointers("hidden_encode", {{"x", params.x}, {"coded", params.coded}});
  Widened<kDType> x(params.x, params.rows, params.layout.width, params.x_stride);
  HiddenEncodeParams host = params;
  host.x = x.data();
  host.x_stride = params.layout.width;
  return status.ok() ? CpuOps().hidden_encode(context, host) : status;
}

template <DType kDType>
absl::Status HiddenDecode(const ExecContext& context, const HiddenDecodeParams& params) {
  const Access access;
  absl::Status status =
      CheckPointers("hidden_decode", {{"coded", params.coded}, {"out", params.out}});
  Widened<kDType> out(nullptr, params.rows, params.layout.width, params.out_stride);
  HiddenDecodeParams host = params;
  host.out = out.data();
  host.out_stride = params.layout.width;
  status.Update(status.ok() ? CpuOps().hidden_decode(context, host) : status);
  if (status.ok()) {
    out.Store(params.out);
  }
  return status;
}

absl::Status Fp8Encode(const ExecContext& context, const Fp8EncodeParams& params) {
  const Access access;
  absl::Status status = CheckPointers("fp8_encode",
                                      {{"source.base", params.source.base},
                                       {"source_table", params.source_table},
                                       {"page_table", params.page_table},
                                       {"pages.base", params.pages.base}});
  return status.ok() ? CpuOps().fp8_encode(context, params) : status;
}

absl::Status RefuseRelease(const ExecContext& /*context*/,
                           const DiffKvReleasePagesParams& /*params*/) {
  return absl::UnimplementedError("the device double gives no pages back");
}

template <DType kDType>
OpTable MakeTable() {
  OpTable table = CpuOps();
  table.name = "device double";
  table.activations = kDType;
  table.tile_rows = 0;
  table.pack_matrix = PackMatrix;
  table.embed = GatheredOp<Embed<kDType>>;
  table.rms_norm = GatheredOp<RmsNorm<kDType>>;
  table.matmul = GatheredOp<Matmul<kDType>>;
  table.rope_angles = GatheredOp<RopeAngles>;
  table.rope = GatheredOp<Rope<kDType>>;
  table.kv_write = GatheredOp<KvWrite<kDType>>;
  table.paged_attention = GatheredOp<PagedAttention<kDType>>;
  table.silu_mul = GatheredOp<SiluMul<kDType>>;
  table.gather_rows = GatheredOp<GatherRows<kDType>>;
  table.copy_pages = GatheredOp<CopyPages>;
  table.top_logits = GatheredOp<TopLogits>;
  table.fp8_encode = GatheredOp<Fp8Encode>;
  SetDiffKvOps<kDType>(table);
  table.diffkv_release_pages = RefuseRelease;
  SetShadowKvOps<kDType>(table);
  table.hidden_encode = GatheredOp<HiddenEncode<kDType>>;
  table.hidden_decode = GatheredOp<HiddenDecode<kDType>>;
  return table;
}

}  // namespace

const OpTable& DeviceDoubleOps(DType activations) {
  static const OpTable* const kF32 = new OpTable(MakeTable<DType::kF32>());
  static const OpTable* const kBf16 = new OpTable(MakeTable<DType::kBF16>());
  return activations == DType::kF32 ? *kF32 : *kBf16;
}

}  // namespace baton::kernels
