// Reads tensors from a checkpoint and packs them for a back end.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "common/checkpoint/checkpoint.h"
#include "common/model/weights.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// A published linear: tensors `name`.weight [out_features, in_features] and perhaps `name`.bias.
struct LinearPart {
  std::string name;
  int64_t out_features = 0;
};

// Borrows everything it is made from, and reads by the context's compute threads. Every error names
// the tensor. Not thread-safe.
class WeightLoader {
 public:
  WeightLoader(const checkpoint::Checkpoint& checkpoint,
               const kernels::OpTable& ops,
               const kernels::ExecContext& exec,
               kernels::DType dtype);

  // A vector [size], always f32.
  absl::StatusOr<kernels::Memory> Vector(const std::string& name, int64_t size) const;
  // Values that are computed from the configuration.
  absl::StatusOr<kernels::Memory> Constants(std::span<const float> values) const;
  // A table [rows, columns] in the weight dtype, not packed.
  absl::StatusOr<kernels::Memory> Table(const std::string& name,
                                        int64_t rows,
                                        int64_t columns) const;
  // The rows of all `parts` packed as one matrix.
  absl::StatusOr<Linear> Stacked(std::span<const LinearPart> parts,
                                 int64_t in_features,
                                 bool with_bias) const;
  // A [rows, columns] table of the weight dtype packed as a matrix without bias.
  absl::StatusOr<Linear> Packed(const kernels::Memory& table, int64_t rows, int64_t columns) const;

 private:
  const checkpoint::Checkpoint& checkpoint_;
  const kernels::OpTable& ops_;
  const kernels::ExecContext& exec_;
  kernels::DType dtype_;
};

}  // namespace baton::model
