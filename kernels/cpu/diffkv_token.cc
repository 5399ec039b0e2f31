#include "kernels/cpu/diffkv_token.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/kv_format/quantize.h"

namespace baton::kernels::cpu {
namespace {

// fn(bytes of a unit, its first dim) for the units of a token's key.
template <typename Function>
void ForKeyUnits(const DiffKvPage& page, int32_t slot, const Function& fn) {
  const DiffKvPageLayout& layout = page.layout();
  const int32_t unit_codes = layout.key_unit_bytes() * 8 / layout.tier.key_bits;
  for (int32_t dim = 0; dim < layout.head_dim; dim += unit_codes) {
    fn(reinterpret_cast<uint8_t*>(page.data() + layout.key_codes() + layout.key_bit(slot, dim) / 8),
       dim);
  }
}

// fn(half word, shift of the first code, first dim) for the half words that hold codes of a token's
// value; a half word's codes are those of neighbouring blocks of 8 dims.
template <int kBits, typename Function>
void ForValueHalves(const DiffKvPage& page, int32_t slot, const Function& fn) {
  const DiffKvPageLayout& layout = page.layout();
  constexpr int kTileTokens = kBits == 8 ? 8 : 16;
  constexpr int kBlocks = 16 / kBits / (kTileTokens / 8);
  const int32_t words = layout.value_lane_words();
  // Where dim 0 lies; its lane's half words follow each other, and dim 1 is four lanes on.
  const size_t first = layout.value_bit(slot, 0);
  std::byte* half = page.data() + layout.value_codes() + first / 16 * 2;
  for (int32_t dim = 0; dim < layout.head_dim; half += int64_t{4} * 32 * words) {
    for (int32_t word = 0; word < words; ++word, dim += 8 * kBlocks) {
      for (int32_t n = 0; n < 8; ++n) {
        fn(half + (16 * n * words + 4 * word), static_cast<uint32_t>(first % 16), dim + n);
      }
    }
  }
}

template <int kBits>
void PackValue(const DiffKvPage& page, int32_t slot, const uint8_t* codes) {
  constexpr int kStep = kBits == 8 ? 8 : 2 * kBits;
  constexpr int kBlocks = 16 / kStep;
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  ForValueHalves<kBits>(page, slot, [&](std::byte* half, uint32_t shift, int32_t dim) {
    uint16_t word;
    std::memcpy(&word, half, 2);
    uint32_t bits = word;
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t at = shift + static_cast<uint32_t>(block * kStep);
      bits = (bits & ~(kMask << at)) | (uint32_t{codes[dim + 8 * block]} << at);
    }
    word = static_cast<uint16_t>(bits);
    std::memcpy(half, &word, 2);
  });
}

template <int kBits>
void UnpackValue(const DiffKvPage& page, int32_t slot, uint8_t* codes) {
  constexpr int kStep = kBits == 8 ? 8 : 2 * kBits;
  constexpr int kBlocks = 16 / kStep;
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  ForValueHalves<kBits>(page, slot, [&](const std::byte* half, uint32_t shift, int32_t dim) {
    uint16_t word;
    std::memcpy(&word, half, 2);
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t at = shift + static_cast<uint32_t>(block * kStep);
      codes[dim + 8 * block] = static_cast<uint8_t>((uint32_t{word} >> at) & kMask);
    }
  });
}

// fn<value bits>() for the layout's width.
template <typename Function>
void WithValueBits(const DiffKvPageLayout& layout, const Function& fn) {
  if (layout.tier.value_bits == 8) {
    fn.template operator()<8>();
  } else if (layout.tier.value_bits == 4) {
    fn.template operator()<4>();
  } else {
    fn.template operator()<2>();
  }
}

}  // namespace

void PackToken(const DiffKvPage& page, int32_t slot, const TokenCodes& codes) {
  const int32_t unit_bytes = page.layout().key_unit_bytes();
  const bool nibbles = page.layout().tier.key_bits == 4;
  ForKeyUnits(page, slot, [&](uint8_t* unit, int32_t dim) {
    for (int32_t i = 0; i < unit_bytes; ++i) {
      const uint8_t* c = codes.key + dim + (nibbles ? 2 * i : i);
      unit[i] = nibbles ? static_cast<uint8_t>(c[0] | (c[1] << 4)) : c[0];
    }
  });
  WithValueBits(page.layout(), [&]<int kBits>() { PackValue<kBits>(page, slot, codes.value); });
}

void UnpackToken(const DiffKvPage& page, int32_t slot, TokenCodes& codes) {
  const int32_t unit_bytes = page.layout().key_unit_bytes();
  const bool nibbles = page.layout().tier.key_bits == 4;
  ForKeyUnits(page, slot, [&](const uint8_t* unit, int32_t dim) {
    for (int32_t i = 0; i < unit_bytes; ++i) {
      if (nibbles) {
        codes.key[dim + 2 * i] = unit[i] & 0xf;
        codes.key[dim + 2 * i + 1] = static_cast<uint8_t>(unit[i] >> 4);
      } else {
        codes.key[dim + i] = unit[i];
      }
    }
  });
  WithValueBits(page.layout(), [&]<int kBits>() { UnpackValue<kBits>(page, slot, codes.value); });
}

void WriteToken(const IsaKernels& isa,
                const DiffKvPage& page,
                int32_t slot,
                const float* k,
                const float* v,
                float score,
                int32_t position) {
  const DiffKvPageLayout& layout = page.layout();
  TokenCodes codes;
  page.key_range(slot) = isa.quantize(k, layout.head_dim, layout.tier.key_bits, codes.key);
  page.value_range(slot) = isa.quantize(v, layout.head_dim, layout.tier.value_bits, codes.value);
  PackToken(page, slot, codes);
  page.score(slot) = score;
  page.position(slot) = position;
}

void DemoteToken(const DiffKvPage& from, int32_t from_slot, const DiffKvPage& to, int32_t to_slot) {
  const DiffKvTier& wide = from.layout().tier;
  const DiffKvTier& narrow = to.layout().tier;
  TokenCodes codes;
  UnpackToken(from, from_slot, codes);
  for (int32_t i = 0; i < from.layout().head_dim; ++i) {
    codes.key[i] = DemoteCode(codes.key[i], wide.key_bits, narrow.key_bits);
    codes.value[i] = DemoteCode(codes.value[i], wide.value_bits, narrow.value_bits);
  }
  PackToken(to, to_slot, codes);
  to.key_range(to_slot) = DemoteRange(from.key_range(from_slot), wide.key_bits, narrow.key_bits);
  to.value_range(to_slot) =
      DemoteRange(from.value_range(from_slot), wide.value_bits, narrow.value_bits);
  to.score(to_slot) = from.score(from_slot);
  to.position(to_slot) = from.position(from_slot);
}

}  // namespace baton::kernels::cpu
