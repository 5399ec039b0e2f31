#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "kernels/core/carver.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

template <typename T>
absl::Status UploadTo(kernels::MemorySpace& space, T* target, std::span<const T> source) {
  return space.Upload(reinterpret_cast<std::byte*>(target),
                      static_cast<const void*>(source.data()),
                      source.size_bytes());
}

}  // namespace

ShadowKvDeviceArrays::Arrays ShadowKvDeviceArrays::Carve(int32_t layers, kernels::Carver& carver) {
  return {.counters = carver.Take<kernels::ShadowKvCounters>(1),
          .layouts = carver.Take<kernels::ShadowKvPromptLayout>(layers),
          .joint_layers = carver.Take<kernels::ShadowKvJointLayer>(layers),
          .appended = carver.Take<kernels::ShadowKvSequence>(std::max(layers, kAppended)),
          .key_biases = carver.Take<const float*>(layers)};
}

absl::StatusOr<std::unique_ptr<ShadowKvDeviceArrays>> ShadowKvDeviceArrays::Allocate(
    BlockCache& blocks, int32_t layers) {
  std::unique_ptr<ShadowKvDeviceArrays> arrays(new ShadowKvDeviceArrays(layers));
  kernels::Carver counter(nullptr);
  Carve(layers, counter);
  BATON_ASSIGN_OR_RETURN(arrays->block_, blocks.Take(counter.used()));
  kernels::Carver carver(arrays->block_.data());
  arrays->arrays_ = Carve(layers, carver);
  return arrays;
}

absl::Status ShadowKvDeviceArrays::Fill(
    kernels::MemorySpace& space, std::span<const kernels::ShadowKvPromptLayout> layouts) const {
  BATON_CHECK(static_cast<int32_t>(layouts.size()) == layers_);
  const kernels::ShadowKvCounters none;
  BATON_RETURN_IF_ERROR(UploadTo(space, arrays_.counters, std::span(&none, 1)));
  return UploadTo(space, arrays_.layouts, layouts);
}

absl::StatusOr<const kernels::ShadowKvJointLayer*> ShadowKvDeviceArrays::UploadJoint(
    kernels::MemorySpace& space,
    int32_t first,
    std::span<const kernels::ShadowKvJointLayer> layers) const {
  BATON_CHECK(first + static_cast<int32_t>(layers.size()) <= layers_);
  kernels::ShadowKvJointLayer* const target = arrays_.joint_layers + first;
  BATON_RETURN_IF_ERROR(UploadTo(space, target, layers));
  return target;
}

absl::StatusOr<const kernels::ShadowKvSequence*> ShadowKvDeviceArrays::UploadAppended(
    kernels::MemorySpace& space, std::span<const kernels::ShadowKvSequence> appended) const {
  BATON_CHECK(static_cast<int32_t>(appended.size()) <= std::max(layers_, kAppended));
  BATON_RETURN_IF_ERROR(UploadTo(space, arrays_.appended, appended));
  return arrays_.appended;
}

absl::StatusOr<const float* const*> ShadowKvDeviceArrays::UploadKeyBiases(
    kernels::MemorySpace& space, std::span<const float* const> key_biases) const {
  BATON_CHECK(static_cast<int32_t>(key_biases.size()) <= layers_);
  BATON_RETURN_IF_ERROR(UploadTo(space, arrays_.key_biases, key_biases));
  return arrays_.key_biases;
}

absl::StatusOr<kernels::ShadowKvCounters> ShadowKvDeviceArrays::Fetch(
    kernels::MemorySpace& space) const {
  kernels::ShadowKvCounters counters;
  BATON_RETURN_IF_ERROR(space.Download(&counters, arrays_.counters, sizeof(counters)));
  return counters;
}

}  // namespace baton::kv
