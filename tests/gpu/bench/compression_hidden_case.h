// Coding of a prompt's hidden states as wire form `hidden` in fp8: op `hidden_encode`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/hidden.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// Once for a prompt, whose upper layers share the states.
class CompressionHiddenCase : public CompressionCase {
 public:
  explicit CompressionHiddenCase(int32_t tokens);

  absl::Status Prepare(const ExecContext& context) override;
  // Share of bytes that differ.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer) override;
  // States, and their codes and scales.
  double bytes() const override;
  double operations() const override { return 0.0; }

 private:
  static constexpr HiddenRowLayout kLayout = {.width = kHeads * kHeadDim, .dtype = DType::kF8E4M3};

  int64_t elements() const { return int64_t{tokens()} * kLayout.width; }
  int64_t coded_bytes() const { return tokens() * static_cast<int64_t>(kLayout.row_bytes()); }

  DeviceArena arena_;
  uint16_t* states_ = nullptr;  // [layers][tokens][width]
  std::byte* coded_ = nullptr;  // [layers][tokens][row bytes]
};

}  // namespace baton::kernels::cuda
