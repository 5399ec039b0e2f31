// What ops read and write of a sequence in format `shadowkv`, besides its run and its cache, on a
// device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "kernels/core/carver.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// Memory that only ops may look at. Accessors are valid from the start, contents from Fill on.
// Executor thread, but for Allocate and the end.
class ShadowKvDeviceArrays {
 public:
  // Tokens of one call that appends.
  static constexpr int32_t kAppended = static_cast<int32_t>(kernels::kShadowKvBlockTokens);

  // For so many stored layers. kResourceExhausted when the device has no memory for them.
  static absl::StatusOr<std::unique_ptr<ShadowKvDeviceArrays>> Allocate(BlockCache& blocks,
                                                                        int32_t layers);

  // A sequence whose layers have these layouts and that has attended to nothing.
  absl::Status Fill(kernels::MemorySpace& space,
                    std::span<const kernels::ShadowKvPromptLayout> layouts) const;
  // Brings the layers of a joint factorization, the first of them stored layer `first`, to where
  // the returned pointer says.
  absl::StatusOr<const kernels::ShadowKvJointLayer*> UploadJoint(
      kernels::MemorySpace& space,
      int32_t first,
      std::span<const kernels::ShadowKvJointLayer> layers) const;
  // Brings a sequence at the positions, or in the layers, that an op appends to, to where the
  // returned pointer says until the next call. At most kAppended of them, or one for each layer.
  absl::StatusOr<const kernels::ShadowKvSequence*> UploadAppended(
      kernels::MemorySpace& space, std::span<const kernels::ShadowKvSequence> appended) const;
  // Likewise the biases of layers whose joint coefficients are coded.
  absl::StatusOr<const float* const*> UploadKeyBiases(
      kernels::MemorySpace& space, std::span<const float* const> key_biases) const;
  // Waits for the ops before, then reads the counters.
  absl::StatusOr<kernels::ShadowKvCounters> Fetch(kernels::MemorySpace& space) const;

  kernels::ShadowKvCounters* counters() const { return arrays_.counters; }
  const kernels::ShadowKvPromptLayout* layout(int32_t kv_layer) const {
    return arrays_.layouts + kv_layer;
  }

 private:
  // The arrays of `block_`.
  struct Arrays {
    kernels::ShadowKvCounters* counters = nullptr;
    kernels::ShadowKvPromptLayout* layouts = nullptr;     // [layers]
    kernels::ShadowKvJointLayer* joint_layers = nullptr;  // [layers]
    kernels::ShadowKvSequence* appended = nullptr;        // [max(layers, kAppended)]
    const float** key_biases = nullptr;                   // [layers]
  };

  explicit ShadowKvDeviceArrays(int32_t layers) : layers_(layers) {}
  static Arrays Carve(int32_t layers, kernels::Carver& carver);

  const int32_t layers_;
  BlockCache::Block block_;
  Arrays arrays_;
};

}  // namespace baton::kv
