// Coding of a prompt in format `fp8`: op `fp8_encode` from bf16 pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/fp8_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

class CompressionFp8Case : public CompressionCase {
 public:
  explicit CompressionFp8Case(int32_t tokens);

  absl::Status Prepare(const ExecContext& context) override;
  // Share of bytes of the pages that differ.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer) override;
  // Keys and values, and their codes and scales.
  double bytes() const override;
  double operations() const override { return 0.0; }

 private:
  int32_t layer_pages() const { return layout_.pages_for(tokens()); }
  size_t page_bytes() const { return static_cast<size_t>(layer_pages()) * layout_.stride_bytes(); }
  size_t source_page_bytes() const {
    return static_cast<size_t>(layer_pages()) * source_layout_.stride_bytes();
  }
  // Of one layer.
  Fp8EncodeParams Params(std::byte* source, std::byte* pages, const int32_t* table) const;
  // Pages of the first layer as the CPU writes them.
  absl::StatusOr<std::vector<std::byte>> OnHost() const;

  DensePageLayout source_layout_;
  DensePageLayout layout_;
  std::vector<int32_t> table_;  // of every layer, whose pages are its own, and of its source
  DeviceArena arena_;
  const int32_t* op_table_ = nullptr;
  std::byte* source_ = nullptr;  // [layers][pages of a layer]
  std::byte* pages_ = nullptr;   // [layers][pages of a layer]
};

}  // namespace baton::kernels::cuda
