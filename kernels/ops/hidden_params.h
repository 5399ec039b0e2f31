// Parameters of the ops of wire form `hidden`. All pointers are borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/hidden.h"

namespace baton::kernels {

// coded[r] = the bytes of x[r].
struct HiddenEncodeParams {
  const void* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  int64_t rows = 0;
  HiddenRowLayout layout;
  std::byte* coded = nullptr;  // [rows][layout.row_bytes()]
};

// out[r] = the row that coded[r] holds.
struct HiddenDecodeParams {
  const std::byte* coded = nullptr;  // [rows][layout.row_bytes()]
  int64_t rows = 0;
  HiddenRowLayout layout;
  void* out = nullptr;  // [rows, width]
  int64_t out_stride = 0;
};

}  // namespace baton::kernels
