// Coding of a scored prompt in format `diffkv`: ops `diffkv_classify`, `diffkv_assign_pages` and
// `diffkv_encode`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/compression_prompt.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// 15 % of a head's tokens are in the high tier, K8V4, and the others in the low one, K4V2.
class CompressionDiffKvCase : public CompressionCase {
 public:
  explicit CompressionDiffKvCase(int32_t tokens);

  absl::Status Prepare(const ExecContext& context) override;
  // Classes, counts, page ids and bytes of pages that differ.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer) override;
  // Keys, values and scores, and the pages.
  double bytes() const override;
  double operations() const override { return 0.0; }

 private:
  // Where the arrays of one layer are, in the memory of one back end.
  struct Arrays {
    const float* scores;   // [kv_heads][tokens]
    DiffKvClass* classes;  // [kv_heads][tokens]
    int32_t* table;        // [kv_heads][columns]
    int32_t* counts;       // [kv_heads][kDiffKvTiers]
    DiffKvLease* lease;
    std::byte* pages;  // [pages of a layer]
    DensePages source;
    const int32_t* source_table;
  };

  Arrays OnDevice(int32_t layer) const;
  absl::Status Encode(const OpTable& ops, const ExecContext& context, const Arrays& arrays) const;
  // Differences of the first layer, coded once, from the CPU's.
  absl::StatusOr<int64_t> CompareWithHost();

  int64_t high_tokens() const;  // of a head
  int32_t layer_pages() const;
  int64_t columns() const { return geometry_.columns_for(tokens()); }
  int64_t head_tokens() const { return int64_t{kKvHeads} * tokens(); }
  size_t page_bytes() const { return static_cast<size_t>(layer_pages()) * geometry_.page_bytes(); }
  std::vector<float> MakeScores() const;

  CompressionPrompt prompt_;
  DiffKvGeometry geometry_;
  DeviceArena arena_;
  float* scores_ = nullptr;         // [kv_heads][tokens]
  DiffKvClass* classes_ = nullptr;  // [kv_heads][tokens]
  int32_t* tables_ = nullptr;       // [layers][kv_heads][columns]
  int32_t* counts_ = nullptr;       // [layers][kv_heads][kDiffKvTiers]
  DiffKvLease* leases_ = nullptr;   // [layers]
  std::byte* pages_ = nullptr;      // [layers][pages of a layer]
};

}  // namespace baton::kernels::cuda
