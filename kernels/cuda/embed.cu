#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

absl::Status Check(const EmbedParams& params) {
  ParamChecker check("embed");
  check.NotNegative("rows", params.rows)
      .NotNegative("dim", params.dim)
      .NotNegative("vocab", params.vocab)
      .FloatDType("dtype", params.dtype);
  if (check.ok() && params.rows > 0) {
    check.NotNull("table", params.table)
        .NotNull("token_ids", params.token_ids)
        .NotNull("out", params.out);
  }
  if (check.ok() && params.dtype != DType::kBF16) {
    const std::string_view name = DTypeName(params.dtype);
    return absl::UnimplementedError(absl::StrCat("embed: dtype is ",
                                                 absl::string_view(name.data(), name.size()),
                                                 "; the CUDA back end has bf16 alone"));
  }
  return check.status();
}

}  // namespace

// Activations are bf16 like the table, so that an embedding is a gather of the table's rows.
absl::Status Embed(const ExecContext& context, const EmbedParams& params) {
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  return GatherRows(context,
                    {.x = params.table,
                     .x_stride = params.dim,
                     .row_index = params.token_ids,
                     .rows = params.rows,
                     .dim = params.dim,
                     .out = params.out,
                     .out_stride = params.dim});
}

}  // namespace baton::kernels::cuda
