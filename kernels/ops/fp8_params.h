// Parameters of the op that codes prompts of KV format `fp8`; decoding is done by kv_write and
// paged_attention. All pointers are borrowed for the call.
#pragma once

#include <cstdint>

#include "kernels/ops/params.h"

namespace baton::kernels {

// Codes the keys and values of the tokens [first_token, tokens) of one layer, which lie in
// unquantized pages, into fp8 pages (EncodeFp8 of kernels/kv_format/fp8.h). Of a page whose first
// slot it writes, the slots behind the last token become zero, as kv_write leaves them.
struct Fp8EncodeParams {
  DensePages source;                      // bf16 or f32; pages from first_token on are read
  const int32_t* source_table = nullptr;  // of this layer
  int64_t first_token = 0;
  int64_t tokens = 0;
  const int32_t* page_table = nullptr;  // of this layer
  DensePages pages;                     // f8e4m3, with the heads of `source`
};

}  // namespace baton::kernels
