// Coding of a prompt in format `shadowkv`: op `shadowkv_encode`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/compression_prompt.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// In the configuration of ShadowKvConfigOf.
class CompressionShadowKvCase : public CompressionCase {
 public:
  explicit CompressionShadowKvCase(int32_t tokens);

  // Workspace that the op needs for a prompt of so many tokens.
  static size_t WorkspaceBytes(int32_t tokens);

  absl::Status Prepare(const ExecContext& context) override;
  // The larger of two: the share of bytes that differ of what depends on no factor, and how much
  // more or less of the keys' energy the product of coefficients and basis leaves out.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer) override;
  // Keys, values and the prompt section.
  double bytes() const override;
  // Of the Gram matrix, half of it by symmetry, and of the coefficients; what finds the subspace
  // depends on the method and is left out.
  double operations() const override;

 private:
  absl::StatusOr<std::vector<std::byte>> OnHost();
  // The share of the coded tokens' energy that a prompt section leaves out.
  double LeftOut(const std::vector<std::byte>& section) const;
  // Share of bytes that differ behind basis and coefficients.
  double ShareOfDifferent(const std::vector<std::byte>& got,
                          const std::vector<std::byte>& want) const;

  CompressionPrompt prompt_;
  ShadowKvPromptLayout layout_;
  DeviceArena arena_;
  std::byte* sections_ = nullptr;  // [layers]
};

}  // namespace baton::kernels::cuda
