// Fills an IsaKernels table with the instantiations for one vector wrapper.
#pragma once

#include "kernels/cpu/attention_fold_inl.h"
#include "kernels/cpu/attention_load_inl.h"
#include "kernels/cpu/elementwise_inl.h"
#include "kernels/cpu/matmul_inl.h"

namespace baton::kernels::cpu {

template <typename V>
constexpr IsaKernels MakeIsaKernels(const char* name) {
  return {
      .name = name,
      .panel_columns = 2 * V::kLanes,
      .tile_rows = V::kTileRows,
      .panel_bf16 = MatmulPanels<V, LoadPairsBF16<V>>,
      .panel_f32 = MatmulPanels<V, LoadF32<V>>,
      .widen_panel = WidenPanel<V>,
      .rms_norm = RmsNormRow<V>,
      .silu_mul = SiluMulRow<V>,
      .rope = RopeHead<V>,
      .widen = WidenRow<V>,
      .narrow = NarrowRow<V>,
      .attention_begin = AttentionBegin<V>,
      .attention_load = AttentionLoad<V>,
      .attention_fold = AttentionFold<V>,
      .attention_finish = AttentionFinish<V>,
  };
}

}  // namespace baton::kernels::cpu
