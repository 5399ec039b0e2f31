// Multiples, for sizes and strides.
#pragma once

#include <concepts>
#include <type_traits>

namespace baton::kernels {

// The smallest multiple of `step`, which is positive, that is not below `count`.
template <std::integral T>
constexpr T RoundUp(T count, std::type_identity_t<T> step) {
  return (count + step - 1) / step * step;
}

}  // namespace baton::kernels
