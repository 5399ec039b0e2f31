#include "common/model/weight_loader.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/base/status_context.h"
#include "common/base/status_macros.h"

namespace baton::model {

using kernels::Buffer;
using kernels::DType;
using kernels::DTypeBytes;

WeightLoader::WeightLoader(const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           const kernels::ExecContext& exec,
                           DType dtype)
    : checkpoint_(checkpoint), ops_(ops), exec_(exec), dtype_(dtype) {}

absl::StatusOr<Buffer> WeightLoader::Vector(const std::string& name, int64_t size) const {
  const std::array<int64_t, 1> shape = {size};
  return checkpoint_.Read(name, shape, DType::kF32);
}

absl::StatusOr<Buffer> WeightLoader::Table(const std::string& name,
                                           int64_t rows,
                                           int64_t columns) const {
  const std::array<int64_t, 2> shape = {rows, columns};
  return checkpoint_.Read(name, shape, dtype_);
}

absl::StatusOr<Linear> WeightLoader::Packed(const Buffer& table,
                                            int64_t rows,
                                            int64_t columns) const {
  Linear linear;
  linear.packed = Buffer(ops_.packed_matrix_bytes(rows, columns, dtype_));
  BATON_RETURN_IF_ERROR(ops_.pack_matrix(exec_,
                                         {.source = table.data(),
                                          .out_features = rows,
                                          .in_features = columns,
                                          .dtype = dtype_,
                                          .target = linear.packed.data()}));
  linear.matrix = {
      .data = linear.packed.data(), .out_features = rows, .in_features = columns, .dtype = dtype_};
  return linear;
}

absl::StatusOr<Linear> WeightLoader::Stacked(std::span<const LinearPart> parts,
                                             int64_t in_features,
                                             bool with_bias) const {
  int64_t out_features = 0;
  for (const LinearPart& part : parts) {
    out_features += part.out_features;
  }
  Buffer rows(static_cast<size_t>(out_features * in_features) * DTypeBytes(dtype_));
  Buffer bias(with_bias ? static_cast<size_t>(out_features) * sizeof(float) : 0);
  size_t row_offset = 0;
  size_t bias_offset = 0;
  for (const LinearPart& part : parts) {
    BATON_ASSIGN_OR_RETURN(const Buffer weight,
                           Table(part.name + ".weight", part.out_features, in_features));
    std::memcpy(rows.data() + row_offset, weight.data(), weight.size());
    row_offset += weight.size();
    if (with_bias) {
      BATON_ASSIGN_OR_RETURN(const Buffer part_bias,
                             Vector(part.name + ".bias", part.out_features));
      std::memcpy(bias.data() + bias_offset, part_bias.data(), part_bias.size());
      bias_offset += part_bias.size();
    }
  }
  absl::StatusOr<Linear> linear = Packed(rows, out_features, in_features);
  if (!linear.ok()) {
    return WithContext(linear.status(), parts.front().name + ".weight");
  }
  linear->bias = std::move(bias);
  return linear;
}

}  // namespace baton::model
