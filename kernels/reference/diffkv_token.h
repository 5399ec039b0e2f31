// Writes single tokens into pages of format `diffkv`, element by element.
#pragma once

#include <cstdint>

#include "kernels/core/half.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/kv_format/quantize.h"

namespace baton::kernels::reference {

// The codes of x[count], with min and max taken in ascending order; store(i, code) keeps each.
template <typename Load, typename Store>
QuantRange QuantizeElements(int32_t count, int32_t bits, const Load& load, const Store& store) {
  float min = load(0);
  float max = min;
  for (int32_t i = 1; i < count; ++i) {
    min = load(i) < min ? load(i) : min;
    max = load(i) > max ? load(i) : max;
  }
  const QuantRange range = FitQuantRange(min, max, bits);
  const float zero = F16ToF32(range.zero);
  const float divisor = QuantDivisor(range);
  for (int32_t i = 0; i < count; ++i) {
    store(i, QuantCode(load(i), zero, divisor, bits));
  }
  return range;
}

// Quantizes key(i) and value(i), i in [0, head_dim), into a slot.
template <typename Key, typename Value>
void WriteToken(const DiffKvPage& page,
                int32_t slot,
                const Key& key,
                const Value& value,
                float score,
                int32_t position) {
  const DiffKvPageLayout& layout = page.layout();
  page.key_range(slot) =
      QuantizeElements(layout.head_dim, layout.tier.key_bits, key, [&](int32_t i, uint8_t code) {
        page.SetKeyCode(slot, i, code);
      });
  page.value_range(slot) = QuantizeElements(
      layout.head_dim, layout.tier.value_bits, value, [&](int32_t i, uint8_t code) {
        page.SetValueCode(slot, i, code);
      });
  page.score(slot) = score;
  page.position(slot) = position;
}

// Moves a token to a tier of no more bits: codes and scales by the demotion map, score and position
// as they are.
inline void DemoteToken(const DiffKvPage& from,
                        int32_t from_slot,
                        const DiffKvPage& to,
                        int32_t to_slot) {
  const DiffKvTier& wide = from.layout().tier;
  const DiffKvTier& narrow = to.layout().tier;
  for (int32_t i = 0; i < from.layout().head_dim; ++i) {
    to.SetKeyCode(
        to_slot, i, DemoteCode(from.KeyCode(from_slot, i), wide.key_bits, narrow.key_bits));
    to.SetValueCode(
        to_slot, i, DemoteCode(from.ValueCode(from_slot, i), wide.value_bits, narrow.value_bits));
  }
  to.key_range(to_slot) = DemoteRange(from.key_range(from_slot), wide.key_bits, narrow.key_bits);
  to.value_range(to_slot) =
      DemoteRange(from.value_range(from_slot), wide.value_bits, narrow.value_bits);
  to.score(to_slot) = from.score(from_slot);
  to.position(to_slot) = from.position(from_slot);
}

}  // namespace baton::kernels::reference
