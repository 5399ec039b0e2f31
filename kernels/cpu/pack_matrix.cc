#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

int64_t NumPanels(const IsaKernels& isa, int64_t out_features) {
  return (out_features + isa.panel_columns - 1) / isa.panel_columns;
}

// Column of a panel row's element `index`: bf16 elements come in pairs (column l, column l +
// lanes).
int64_t PanelColumn(const IsaKernels& isa, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    return index;
  }
  return index / 2 + (index % 2) * (isa.panel_columns / 2);
}

template <typename Element>
void PackPanel(const IsaKernels& isa, const PackMatrixParams& params, int64_t panel) {
  const int64_t first = panel * isa.panel_columns;
  const auto* source = reinterpret_cast<const Element*>(params.source);
  Element* target = reinterpret_cast<Element*>(params.target) + first * params.in_features;
  for (int64_t index = 0; index < isa.panel_columns; ++index) {
    const int64_t column = first + PanelColumn(isa, params.dtype, index);
    const bool present = column < params.out_features;
    for (int64_t k = 0; k < params.in_features; ++k) {
      target[k * isa.panel_columns + index] =
          present ? source[column * params.in_features + k] : Element{0};
    }
  }
}

}  // namespace

size_t PackedMatrixBytes(const IsaKernels& isa,
                         int64_t out_features,
                         int64_t in_features,
                         DType dtype) {
  return static_cast<size_t>(NumPanels(isa, out_features)) *
         static_cast<size_t>(isa.panel_columns) * static_cast<size_t>(in_features) *
         DTypeBytes(dtype);
}

absl::Status PackMatrix(const IsaKernels& isa,
                        const ExecContext& context,
                        const PackMatrixParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int64_t panel_elements = params.in_features * isa.panel_columns;
  ForRows(context, NumPanels(isa, params.out_features), panel_elements, [&](int64_t panel) {
    if (params.dtype == DType::kF32) {
      PackPanel<float>(isa, params, panel);
    } else {
      PackPanel<uint16_t>(isa, params, panel);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
