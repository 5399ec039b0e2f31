// What a model tells tools of its residual stream.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/model/forward.h"
#include "common/model/transformer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/core/memory.h"
#include "kernels/ops/activations.h"

namespace baton::model {

absl::Status TransformerModel::ReportHidden(const ForwardBatch& batch,
                                            int32_t layer,
                                            const void* x,
                                            int64_t rows) {
  if (!batch.on_hidden) {
    return absl::OkStatus();
  }
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(config_.hidden_size);
  if (exec_.memory->is_host()) {
    batch.on_hidden(layer, std::span(kernels::Floats(x), size), rows);
    return absl::OkStatus();
  }
  std::vector<float> values(size);
  if (ops_.activations == kernels::DType::kF32) {
    BATON_RETURN_IF_ERROR(exec_.memory->Download(values.data(), x, size * sizeof(float)));
  } else {
    std::vector<uint16_t> bits(size);
    BATON_RETURN_IF_ERROR(exec_.memory->Download(bits.data(), x, size * sizeof(uint16_t)));
    for (size_t i = 0; i < size; ++i) {
      values[i] = kernels::BF16ToF32(bits[i]);
    }
  }
  batch.on_hidden(layer, values, rows);
  return absl::OkStatus();
}

absl::Status TransformerModel::ReportFinalHidden(const ForwardBatch& batch,
                                                 const void* x,
                                                 int64_t rows) {
  if (!batch.on_hidden) {
    return absl::OkStatus();
  }
  const auto elements = static_cast<size_t>(rows) * static_cast<size_t>(config_.hidden_size);
  BATON_ASSIGN_OR_RETURN(const kernels::Memory normed,
                         exec_.memory->Allocate(elements * kernels::DTypeBytes(ops_.activations)));
  BATON_RETURN_IF_ERROR(Norm(x, weights_.final_norm, rows, normed.data()));
  return ReportHidden(batch, config_.num_layers, normed.data(), rows);
}

}  // namespace baton::model
