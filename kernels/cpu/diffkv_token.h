// Moves whole tokens between one byte per code and the code order of a page of format `diffkv`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"

namespace baton::kernels::cpu {

// The largest head_dim that has a page layout.
inline constexpr int32_t kMaxDiffKvHeadDim = 128;

// One byte per code of a token.
struct TokenCodes {
  uint8_t key[kMaxDiffKvHeadDim];
  uint8_t value[kMaxDiffKvHeadDim];
};

void PackToken(const DiffKvPage& page, int32_t slot, const TokenCodes& codes);
void UnpackToken(const DiffKvPage& page, int32_t slot, TokenCodes& codes);

// Quantizes k and v [head_dim] into a slot.
void WriteToken(const IsaKernels& isa,
                const DiffKvPage& page,
                int32_t slot,
                const float* k,
                const float* v,
                float score,
                int32_t position);

// Moves a token to a tier of no more bits by the demotion map.
void DemoteToken(const DiffKvPage& from, int32_t from_slot, const DiffKvPage& to, int32_t to_slot);

}  // namespace baton::kernels::cpu
