// Dense pages for the sequences of one model.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"

namespace baton::model {

// Memory is made once, for the most tokens that are held at a time. Not thread-safe.
class ModelPages {
 public:
  // Room for `tokens` tokens in each of `layers` layers. kResourceExhausted when the back end lacks
  // the memory.
  static absl::StatusOr<ModelPages> Create(const kernels::DensePageLayout& layout,
                                           int32_t layers,
                                           int64_t tokens,
                                           kernels::MemorySpace& space);

  int32_t layers() const { return layers_; }
  kernels::DensePages pages() const { return {.base = memory_.data(), .layout = layout_}; }
  // All pages one after another.
  const kernels::Memory& memory() const { return memory_; }

  // Page tables of sequences of `tokens` tokens: [sequences][layers][pages_for(tokens)]. Pages are
  // drawn anew in every call from all over the pool. kResourceExhausted when it has too few.
  absl::StatusOr<std::vector<int32_t>> DrawTables(int32_t sequences, int64_t tokens);

 private:
  ModelPages(const kernels::DensePageLayout& layout,
             int32_t layers,
             kernels::Memory memory,
             std::vector<int32_t> ids);

  kernels::DensePageLayout layout_;
  int32_t layers_;
  kernels::Memory memory_;
  std::vector<int32_t> ids_;  // of all pages
  std::mt19937 random_;
};

}  // namespace baton::model
