#include "common/model/weight_loader.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/read_tensors.h"
#include "common/model/weights.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

using checkpoint::TensorRead;
using kernels::Buffer;
using kernels::DType;
using kernels::DTypeBytes;
using kernels::Memory;

WeightLoader::WeightLoader(const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           const kernels::ExecContext& exec,
                           DType dtype)
    : checkpoint_(checkpoint), ops_(ops), exec_(exec), dtype_(dtype) {}

absl::StatusOr<Memory> WeightLoader::Vector(const std::string& name, int64_t size) const {
  const std::array<int64_t, 1> shape = {size};
  BATON_ASSIGN_OR_RETURN(Buffer values, checkpoint_.Read(name, shape, DType::kF32));
  return exec_.memory->Adopt(std::move(values));
}

absl::StatusOr<Memory> WeightLoader::Constants(std::span<const float> values) const {
  Buffer bytes(values.size_bytes());
  std::memcpy(bytes.data(), values.data(), values.size_bytes());
  return exec_.memory->Adopt(std::move(bytes));
}

absl::StatusOr<Memory> WeightLoader::Table(const std::string& name,
                                           int64_t rows,
                                           int64_t columns) const {
  const std::array<int64_t, 2> shape = {rows, columns};
  BATON_RETURN_IF_ERROR(checkpoint_.ReadPart(name, shape, dtype_, 0, {}));
  Buffer values(static_cast<size_t>(rows * columns) * DTypeBytes(dtype_));
  const std::array<TensorRead, 1> read = {
      {{.name = name, .shape = {rows, columns}, .dtype = dtype_, .target = values.bytes()}}};
  BATON_RETURN_IF_ERROR(checkpoint::ReadTensors(checkpoint_, read, *exec_.pool));
  return exec_.memory->Adopt(std::move(values));
}

absl::StatusOr<Linear> WeightLoader::Packed(const Memory& table,
                                            int64_t rows,
                                            int64_t columns) const {
  Linear linear;
  BATON_ASSIGN_OR_RETURN(linear.packed,
                         exec_.memory->Allocate(ops_.packed_matrix_bytes(rows, columns, dtype_)));
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
    const std::array<int64_t, 2> shape = {part.out_features, in_features};
    BATON_RETURN_IF_ERROR(checkpoint_.ReadPart(part.name + ".weight", shape, dtype_, 0, {}));
    out_features += part.out_features;
  }
  Buffer rows(static_cast<size_t>(out_features * in_features) * DTypeBytes(dtype_));
  Buffer bias(with_bias ? static_cast<size_t>(out_features) * sizeof(float) : 0);
  std::vector<TensorRead> reads;
  std::span<std::byte> free_rows = rows.bytes();
  std::span<std::byte> free_bias = bias.bytes();
  const auto add = [&reads](std::string name,
                            std::vector<int64_t> shape,
                            DType dtype,
                            size_t elements,
                            std::span<std::byte>& free) {
    const size_t bytes = elements * DTypeBytes(dtype);
    reads.push_back({.name = std::move(name),
                     .shape = std::move(shape),
                     .dtype = dtype,
                     .target = free.first(bytes)});
    free = free.subspan(bytes);
  };
  for (const LinearPart& part : parts) {
    const auto features = static_cast<size_t>(part.out_features);
    add(part.name + ".weight",
        {part.out_features, in_features},
        dtype_,
        features * static_cast<size_t>(in_features),
        free_rows);
    if (with_bias) {
      add(part.name + ".bias", {part.out_features}, DType::kF32, features, free_bias);
    }
  }
  BATON_RETURN_IF_ERROR(checkpoint::ReadTensors(checkpoint_, reads, *exec_.pool));
  BATON_ASSIGN_OR_RETURN(const Memory table, exec_.memory->Adopt(std::move(rows)));
  absl::StatusOr<Linear> linear = Packed(table, out_features, in_features);
  if (!linear.ok()) {
    return WithContext(linear.status(), parts.front().name + ".weight");
  }
  BATON_ASSIGN_OR_RETURN(linear->bias, exec_.memory->Adopt(std::move(bias)));
  return linear;
}

}  // namespace baton::model
