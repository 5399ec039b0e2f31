// Rebuilds selected chunks from a coded section.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/shadowkv_workspace.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"

namespace baton::kernels::cpu {

struct ReconstructTask {
  const IsaKernels& isa;
  const ShadowKvSequenceView& view;
  ShadowKvRope rope;
  const float* key_bias = nullptr;
  int64_t head = 0;
  const int32_t* ids = nullptr;  // [selected]
  int64_t selected = 0;
  const int32_t* plan = nullptr;  // [selected], as ShadowKvPlanCache leaves it
  std::byte* keys = nullptr;      // [slots][chunk][head_dim] dtype
  std::byte* values = nullptr;    // the same; quantized values only
  AttendScratch scratch;
};

// Writes the keys, and the values if they are quantized, of every miss into its slot. A key's bits
// do not depend on which others are rebuilt with it.
void ReconstructMisses(const ReconstructTask& task);

}  // namespace baton::kernels::cpu
