// Element access to one page of format `diffkv`. Plain and slow: the reference back end, tests and
// whatever touches single tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/quantize.h"

namespace baton::kernels {

// Borrows the page's memory, which is aligned to 4 bytes. Slots and dims are not checked.
class DiffKvPage {
 public:
  DiffKvPage(const DiffKvPageLayout& layout, std::byte* page) : layout_(layout), page_(page) {}

  const DiffKvPageLayout& layout() const { return layout_; }
  std::byte* data() const { return page_; }

  uint8_t KeyCode(int32_t slot, int32_t dim) const {
    return Code(layout_.key_codes(), layout_.key_bit(slot, dim), layout_.tier.key_bits);
  }
  uint8_t ValueCode(int32_t slot, int32_t dim) const {
    return Code(layout_.value_codes(), layout_.value_bit(slot, dim), layout_.tier.value_bits);
  }
  void SetKeyCode(int32_t slot, int32_t dim, uint8_t code) const {
    SetCode(layout_.key_codes(), layout_.key_bit(slot, dim), layout_.tier.key_bits, code);
  }
  void SetValueCode(int32_t slot, int32_t dim, uint8_t code) const {
    SetCode(layout_.value_codes(), layout_.value_bit(slot, dim), layout_.tier.value_bits, code);
  }

  QuantRange& key_range(int32_t slot) const { return At<QuantRange>(layout_.key_scales(), slot); }
  QuantRange& value_range(int32_t slot) const {
    return At<QuantRange>(layout_.value_scales(), slot);
  }
  float& score(int32_t slot) const { return At<float>(layout_.scores(), slot); }
  int32_t& position(int32_t slot) const { return At<int32_t>(layout_.positions(), slot); }

 private:
  template <typename T>
  T& At(size_t offset, int32_t slot) const {
    return reinterpret_cast<T*>(page_ + offset)[slot];
  }
  uint8_t Code(size_t segment, size_t bit, int32_t bits) const {
    const auto byte = std::to_integer<uint32_t>(page_[segment + bit / 8]);
    return static_cast<uint8_t>((byte >> (bit % 8)) & static_cast<uint32_t>(QuantLevels(bits)));
  }
  void SetCode(size_t segment, size_t bit, int32_t bits, uint8_t code) const {
    std::byte& byte = page_[segment + bit / 8];
    const auto mask = static_cast<uint32_t>(QuantLevels(bits)) << (bit % 8);
    const uint32_t kept = std::to_integer<uint32_t>(byte) & ~mask;
    byte = static_cast<std::byte>(kept | (uint32_t{code} << (bit % 8)));
  }

  DiffKvPageLayout layout_;
  std::byte* page_;
};

}  // namespace baton::kernels
