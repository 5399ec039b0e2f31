// Prompts in dense pages on the device, to be coded in format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/support/device_shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {

// A copy of a problem's prompt, and a section for it.
class DeviceShadowKvPrompt {
 public:
  explicit DeviceShadowKvPrompt(const ShadowKvProblem& problem);

  // Names memory of this object.
  ShadowKvEncodeParams params() const;
  // The section, of poisoned bytes before like values apart, once the op has run.
  std::vector<std::byte> Encode(const OpTable& ops, const ExecContext& context) const;
  // Values apart, in memory of the host.
  std::span<const std::byte> values() const { return values_.bytes(); }
  // Makes all keys and values zero.
  void ClearPages() const;

 private:
  ShadowKvPromptLayout layout_;
  DensePageLayout pages_layout_;
  DeviceArray<std::byte> pages_;
  DeviceArray<int32_t> page_table_;
  DeviceShadowKvRope rope_;
  bool has_bias_;
  DeviceArray<float> key_bias_;
  DeviceArray<std::byte> prompt_;
  PinnedBytes values_;
};

}  // namespace baton::kernels::cuda
