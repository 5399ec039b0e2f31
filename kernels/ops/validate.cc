#include "kernels/ops/validate.h"

#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

absl::Status Validate(const PackMatrixParams& params) {
  ParamChecker check("pack_matrix");
  check.NotNegative("out_features", params.out_features)
      .NotNegative("in_features", params.in_features)
      .FloatDType("dtype", params.dtype);
  if (check.ok() && params.out_features > 0 && params.in_features > 0) {
    check.NotNull("source", params.source).NotNull("target", params.target);
  }
  return check.status();
}

absl::Status Validate(const EmbedParams& params) {
  ParamChecker check("embed");
  check.NotNegative("rows", params.rows)
      .NotNegative("dim", params.dim)
      .NotNegative("vocab", params.vocab)
      .FloatDType("dtype", params.dtype);
  if (!check.ok() || params.rows == 0) {
    return check.status();
  }
  check.NotNull("table", params.table)
      .NotNull("token_ids", params.token_ids)
      .NotNull("out", params.out);
  for (int64_t row = 0; check.ok() && row < params.rows; ++row) {
    check.InRange("token_ids", row, params.token_ids[row], params.vocab);
  }
  return check.status();
}

absl::Status Validate(const RmsNormParams& params) {
  ParamChecker check("rms_norm");
  check.NotNegative("rows", params.rows)
      .NotNegative("groups", params.groups)
      .Positive("dim", params.dim);
  if (check.ok() && params.rows > 0) {
    check.NotNull("x", params.x)
        .NotNull("weight", params.weight)
        .NotNull("out", params.out)
        .AtLeast("x_stride", params.x_stride, params.groups * params.dim)
        .AtLeast("out_stride", params.out_stride, params.groups * params.dim);
  }
  return check.status();
}

namespace {

// What a product is part of, where there is a product.
void CheckParts(const MatmulParams& params, ParamChecker& check) {
  const int64_t out_features = params.weight.out_features;
  if (params.norm.weight != nullptr) {
    check.NotNull("norm.normed", params.norm.normed)
        .Positive("weight.in_features", params.weight.in_features);
  }
  if (params.rope.cosines != nullptr) {
    check.NotNull("rope.sines", params.rope.sines)
        .NotNegative("rope.heads", params.rope.heads)
        .Positive("rope.half_dim", params.rope.half_dim)
        .AtLeast("weight.out_features", out_features, params.rope.heads * 2 * params.rope.half_dim);
  }
  if (params.gate_up != nullptr) {
    check.Require(out_features % 2 == 0, "weight.out_features", out_features, "must be even");
  }
}

// Parts that exclude each other.
absl::Status CheckTogether(const MatmulParams& params) {
  if (params.wide && params.accumulate) {
    return absl::InvalidArgumentError("matmul: a wide output can't be accumulated to");
  }
  const bool rotated = params.rope.cosines != nullptr;
  const bool gated = params.gate_up != nullptr;
  if ((rotated || gated) && (params.wide || params.accumulate || (rotated && gated))) {
    return absl::InvalidArgumentError(
        "matmul: rope and gate_up are not for each other, accumulate or wide");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const MatmulParams& params) {
  ParamChecker check("matmul");
  check.NotNegative("rows", params.rows)
      .NotNegative("weight.out_features", params.weight.out_features)
      .NotNegative("weight.in_features", params.weight.in_features)
      .FloatDType("weight.dtype", params.weight.dtype);
  if (check.ok() && params.rows > 0 && params.weight.out_features > 0) {
    const int64_t width = params.weight.out_features / (params.gate_up == nullptr ? 1 : 2);
    check.NotNull("out", params.out)
        .AtLeast("x_stride", params.x_stride, params.weight.in_features)
        .AtLeast("out_stride", params.out_stride, width);
    if (params.weight.in_features > 0) {
      check.NotNull("x", params.x).NotNull("weight.data", params.weight.data);
    }
    CheckParts(params, check);
  }
  return check.ok() ? CheckTogether(params) : check.status();
}

absl::Status Validate(const RopeAnglesParams& params) {
  ParamChecker check("rope_angles");
  check.NotNegative("rows", params.rows).NotNegative("half_dim", params.half_dim);
  if (check.ok() && params.rows > 0 && params.half_dim > 0) {
    check.NotNull("positions", params.positions)
        .NotNull("inverse_frequencies", params.inverse_frequencies)
        .NotNull("cosines", params.cosines)
        .NotNull("sines", params.sines);
  }
  return check.status();
}

absl::Status Validate(const RopeParams& params) {
  ParamChecker check("rope");
  check.NotNegative("rows", params.rows)
      .NotNegative("heads", params.heads)
      .NotNegative("half_dim", params.half_dim);
  if (check.ok() && params.rows > 0 && params.heads > 0 && params.half_dim > 0) {
    check.NotNull("x", params.x)
        .NotNull("cosines", params.cosines)
        .NotNull("sines", params.sines)
        .AtLeast("x_stride", params.x_stride, params.heads * 2 * params.half_dim);
  }
  return check.status();
}

absl::Status Validate(const SiluMulParams& params) {
  ParamChecker check("silu_mul");
  check.NotNegative("rows", params.rows).NotNegative("dim", params.dim);
  if (check.ok() && params.rows > 0 && params.dim > 0) {
    check.NotNull("gate_up", params.gate_up)
        .NotNull("out", params.out)
        .AtLeast("gate_up_stride", params.gate_up_stride, 2 * params.dim)
        .AtLeast("out_stride", params.out_stride, params.dim);
  }
  return check.status();
}

absl::Status Validate(const TopLogitsParams& params) {
  ParamChecker check("top_logits");
  check.NotNegative("rows", params.rows);
  if (check.ok() && params.rows > 0) {
    check.Positive("vocab", params.vocab)
        .Require(params.count >= 1 && params.count <= kMaxTopLogits,
                 "count",
                 params.count,
                 "must be in [1, 256]")
        .NotNull("logits", params.logits)
        .NotNull("ids", params.ids)
        .NotNull("values", params.values)
        .NotNull("log_sums", params.log_sums);
  }
  return check.status();
}

absl::Status Validate(const GatherRowsParams& params) {
  ParamChecker check("gather_rows");
  check.NotNegative("rows", params.rows).NotNegative("dim", params.dim);
  if (!check.ok() || params.rows == 0 || params.dim == 0) {
    return check.status();
  }
  check.NotNull("x", params.x)
      .NotNull("row_index", params.row_index)
      .NotNull("out", params.out)
      .AtLeast("x_stride", params.x_stride, params.dim)
      .AtLeast("out_stride", params.out_stride, params.dim);
  for (int64_t row = 0; check.ok() && row < params.rows; ++row) {
    check.NotNegative("row_index element", params.row_index[row]);
  }
  return check.status();
}

}  // namespace baton::kernels
