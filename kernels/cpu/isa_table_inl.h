// Fills an IsaKernels table with the instantiations for one vector wrapper.
#pragma once

#include "kernels/cpu/attention_fold_inl.h"
#include "kernels/cpu/attention_load_inl.h"
#include "kernels/cpu/dot_rows_inl.h"
#include "kernels/cpu/elementwise_inl.h"
#include "kernels/cpu/fp8_inl.h"
#include "kernels/cpu/linear_algebra_inl.h"
#include "kernels/cpu/matmul_inl.h"
#include "kernels/cpu/probabilities_inl.h"
#include "kernels/cpu/quant_codes_inl.h"
#include "kernels/cpu/quant_scores_inl.h"
#include "kernels/cpu/quant_values_inl.h"

namespace baton::kernels::cpu {

template <typename V>
constexpr IsaKernels MakeIsaKernels(const char* name) {
  return {
      .name = name,
      .panel_columns = 2 * V::kLanes,
      .tile_rows = V::kTileRows,
      .quant_heads = V::kQuantHeads,
      .panel_bf16 = MatmulPanels<V, LoadPairsBF16<V>>,
      .panel_f32 = MatmulPanels<V, LoadF32<V>>,
      .widen_panel = WidenPanel<V>,
      .rms_norm = RmsNormRow<V>,
      .silu_mul = SiluMulRow<V>,
      .rope = RopeHead<V>,
      .widen = WidenRow<V>,
      .narrow = NarrowRow<V>,
      .encode_fp8 = EncodeFp8Row<V>,
      .attention_begin = AttentionBegin<V>,
      .attention_load = AttentionLoad<V>,
      .attention_fold = AttentionFold<V>,
      .attention_finish = AttentionFinish<V>,
      .attention_load_keys = AttentionLoadKeys<V>,
      .attention_measure = AttentionMeasure<V>,
      .attention_raise = AttentionRaise<V>,
      .quantize = QuantizeRow<V>,
      .least_mean = LeastMean<V>,
      .quant_scores = QuantScores<V>,
      .quant_values = QuantValues<V>,
      .quant_probabilities = QuantProbabilities<V>,
      .dot_rows = DotRows<V>,
      .log_sum_exp = LogSumExp<V>,
      .exp_below_max = ExpBelowMax<V>,
      .gram_panel = GramPanel<V>,
      .matmul_f64 = MatmulF64<V>,
      .dot_f64 = DotF64<V>,
      .add_scaled_f64 = AddScaledF64<V>,
      .rotate_f64 = RotateF64<V>,
  };
}

}  // namespace baton::kernels::cpu
