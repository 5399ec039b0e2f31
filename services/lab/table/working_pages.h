// The dense pages that a prompt is computed into, and that decode may go on from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"

namespace baton::lab {

// Pages of one sequence: those of the prompt, and those of a decode run from the dense prompt. A
// run shares the prompt's full pages and has the others, the partly filled one included, to itself,
// so that the prompt stays as it was.
class WorkingPages {
 public:
  WorkingPages(const kv::KvDimensions& dimensions,
               kernels::DType dtype,
               int64_t prompt_tokens,
               int64_t max_tokens);

  kernels::DensePages pages() { return {.base = memory_.data(), .layout = layout_}; }
  kv::DenseTable prompt_table() const;
  // Takes over the prompt's partly filled page; call once the prompt is computed.
  kv::DenseTable StartRun();
  // Makes the prompt's first `layers` layers those of `source`, pages of the same prompt.
  void CopyLayers(const WorkingPages& source, int32_t layers);
  // Whole pages of the prompt in memory.
  int64_t PromptBytes() const;
  // Pages of the prompt's first `layers` layers as they are sent.
  int64_t SentBytes(int32_t layers) const;

 private:
  std::byte* page(int32_t id);
  const std::byte* page(int32_t id) const;
  // Index of a layer's partly filled page in a table.
  size_t PartialPage(int32_t layer, int32_t pages_per_layer) const;

  kernels::DensePageLayout layout_;
  int32_t layers_;
  int32_t prompt_pages_;               // per layer
  int32_t full_pages_;                 // of them
  int32_t run_pages_;                  // per layer, shared ones included
  std::vector<int32_t> prompt_table_;  // [layers][prompt_pages]
  std::vector<int32_t> run_table_;     // [layers][run_pages]
  kernels::Buffer memory_;
};

}  // namespace baton::lab
