// One object of cuDNN's graph interface.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/cudnn_api.h"

namespace baton::kernels::cuda {

// Owns a backend descriptor. What is set before Finalize is checked there; the first failure is
// kept, later calls do nothing, so that a graph of dozens of calls is checked once. Move-only; not
// thread-safe.
class CudnnDescriptor {
 public:
  CudnnDescriptor(std::shared_ptr<const CudnnApi> api, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  ~CudnnDescriptor();

  // Sets one value of an enumeration, a number or a bool.
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    SetRaw(name, type, 1, static_cast<const void*>(&value));
  }
  void SetInt64(cudnnBackendAttributeName_t name, int64_t value) {
    Set(name, CUDNN_TYPE_INT64, value);
  }
  void SetInt64s(cudnnBackendAttributeName_t name, std::span<const int64_t> values);
  void SetText(cudnnBackendAttributeName_t name, std::string_view text);
  // Addresses of the host or the device.
  void SetPointers(cudnnBackendAttributeName_t name, std::span<void* const> pointers);
  // `others` must live as long as this descriptor is used.
  void SetDescriptor(cudnnBackendAttributeName_t name, const CudnnDescriptor& other);
  void SetDescriptors(cudnnBackendAttributeName_t name,
                      std::span<const CudnnDescriptor* const> others);

  // The first failure of making, setting or finalizing.
  absl::Status Finalize();

  // Of a finalized descriptor.
  absl::StatusOr<int64_t> GetInt64(cudnnBackendAttributeName_t name) const;
  // Fills in `into`, which was made with the attribute's type.
  absl::Status GetDescriptor(cudnnBackendAttributeName_t name, CudnnDescriptor& into) const;
  // As many as there are, `type` each.
  absl::StatusOr<std::vector<CudnnDescriptor>> GetDescriptors(
      cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const;

  const std::shared_ptr<const CudnnApi>& api() const { return api_; }
  // What cuDNN's own functions take; belongs to this object.
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  void SetRaw(cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type,
              int64_t count,
              const void* values);
  void Destroy();

  std::shared_ptr<const CudnnApi> api_;
  cudnnBackendDescriptor_t handle_ = nullptr;
  absl::Status status_;
};

}  // namespace baton::kernels::cuda
