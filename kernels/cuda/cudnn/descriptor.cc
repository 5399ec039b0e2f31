#include "kernels/cuda/cudnn/descriptor.h"

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/cudnn_api.h"

namespace baton::kernels::cuda {

CudnnDescriptor::CudnnDescriptor(std::shared_ptr<const CudnnApi> api,
                                 cudnnBackendDescriptorType_t type)
    : api_(std::move(api)),
      status_(api_->ToStatus(api_->create_descriptor(type, &handle_), "make a descriptor")) {}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : api_(std::move(other.api_)),
      handle_(std::exchange(other.handle_, nullptr)),
      status_(std::move(other.status_)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  if (this != &other) {
    Destroy();
    api_ = std::move(other.api_);
    handle_ = std::exchange(other.handle_, nullptr);
    status_ = std::move(other.status_);
  }
  return *this;
}

CudnnDescriptor::~CudnnDescriptor() { Destroy(); }

void CudnnDescriptor::Destroy() {
  if (handle_ != nullptr) {
    api_->destroy_descriptor(handle_);
  }
}

void CudnnDescriptor::SetRaw(cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type,
                             int64_t count,
                             const void* values) {
  if (status_.ok()) {
    status_ =
        api_->ToStatus(api_->set_attribute(handle_, name, type, count, values), "set an attribute");
  }
}

void CudnnDescriptor::SetInt64s(cudnnBackendAttributeName_t name, std::span<const int64_t> values) {
  SetRaw(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
}

void CudnnDescriptor::SetText(cudnnBackendAttributeName_t name, std::string_view text) {
  SetRaw(name, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
}

void CudnnDescriptor::SetPointers(cudnnBackendAttributeName_t name,
                                  std::span<void* const> pointers) {
  SetRaw(name,
         CUDNN_TYPE_VOID_PTR,
         static_cast<int64_t>(pointers.size()),
         static_cast<const void*>(pointers.data()));
}

void CudnnDescriptor::SetDescriptor(cudnnBackendAttributeName_t name,
                                    const CudnnDescriptor& other) {
  SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, static_cast<const void*>(&other.handle_));
}

void CudnnDescriptor::SetDescriptors(cudnnBackendAttributeName_t name,
                                     std::span<const CudnnDescriptor* const> others) {
  std::vector<cudnnBackendDescriptor_t> handles;
  handles.reserve(others.size());
  for (const CudnnDescriptor* other : others) {
    handles.push_back(other->handle_);
  }
  SetRaw(name,
         CUDNN_TYPE_BACKEND_DESCRIPTOR,
         static_cast<int64_t>(handles.size()),
         static_cast<const void*>(handles.data()));
}

absl::Status CudnnDescriptor::Finalize() {
  if (status_.ok()) {
    status_ = api_->ToStatus(api_->finalize(handle_), "finalize a descriptor");
  }
  return status_;
}

absl::StatusOr<int64_t> CudnnDescriptor::GetInt64(cudnnBackendAttributeName_t name) const {
  int64_t value = 0;
  int64_t count = 0;
  const absl::Status status = api_->ToStatus(
      api_->get_attribute(handle_, name, CUDNN_TYPE_INT64, 1, &count, &value), "read an attribute");
  return status.ok() ? absl::StatusOr<int64_t>(value) : status;
}

absl::Status CudnnDescriptor::GetDescriptor(cudnnBackendAttributeName_t name,
                                            CudnnDescriptor& into) const {
  int64_t count = 0;
  return api_->ToStatus(api_->get_attribute(handle_,
                                            name,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                            1,
                                            &count,
                                            static_cast<void*>(&into.handle_)),
                        "read a descriptor");
}

absl::StatusOr<std::vector<CudnnDescriptor>> CudnnDescriptor::GetDescriptors(
    cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const {
  int64_t count = 0;
  absl::Status status = api_->ToStatus(
      api_->get_attribute(handle_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
      "count descriptors");
  std::vector<CudnnDescriptor> descriptors;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    descriptors.emplace_back(api_, type);
    handles.push_back(descriptors.back().handle_);
    status = descriptors.back().status_;
  }
  if (status.ok() && count > 0) {
    status = api_->ToStatus(api_->get_attribute(handle_,
                                                name,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                count,
                                                &count,
                                                static_cast<void*>(handles.data())),
                            "read descriptors");
  }
  if (!status.ok()) {
    return status;
  }
  // cuDNN may give fewer than it counted.
  descriptors.erase(descriptors.begin() + count, descriptors.end());
  return descriptors;
}

}  // namespace baton::kernels::cuda
