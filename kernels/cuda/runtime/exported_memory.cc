#include "kernels/cuda/runtime/exported_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/memory.h"
#include "kernels/core/round_up.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/driver_api.h"

namespace baton::kernels::cuda {
namespace {

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

absl::StatusOr<CUmemLocation> CurrentDevice() {
  int device = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "find the current device");
      !status.ok()) {
    return status;
  }
  return CUmemLocation{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

// A handle of memory, which its mappings outlive.
class Handle {
 public:
  explicit Handle(const DriverApi& api) : api_(api) {}
  ~Handle() {
    if (handle_ != 0) {
      api_.memory_release(handle_);
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  CUmemGenericAllocationHandle* target() { return &handle_; }
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  const DriverApi& api_;
  CUmemGenericAllocationHandle handle_ = 0;
};

// Addresses of the device with memory behind them.
class MappedRange {
 public:
  static absl::StatusOr<std::unique_ptr<MappedRange>> Map(const DriverApi& api,
                                                          const Handle& handle,
                                                          size_t bytes,
                                                          CUmemAccess_flags access) {
    absl::StatusOr<CUmemLocation> device = CurrentDevice();
    if (!device.ok()) {
      return device.status();
    }
    std::unique_ptr<MappedRange> range(new MappedRange(api, bytes));
    absl::Status status =
        api.ToStatus(api.address_reserve(&range->begin_, bytes, 0, 0, 0), "reserve addresses");
    if (status.ok()) {
      status = api.ToStatus(api.memory_map(range->begin_, bytes, 0, handle.get(), 0), "map memory");
      range->mapped_ = status.ok();
    }
    if (status.ok()) {
      const CUmemAccessDesc allowed = {.location = *device, .flags = access};
      status = api.ToStatus(api.set_access(range->begin_, bytes, &allowed, 1), "open memory");
    }
    if (!status.ok()) {
      return status;
    }
    return range;
  }
  // Waits for the device, which may be reading it.
  ~MappedRange() {
    cudaDeviceSynchronize();
    if (mapped_) {
      api_.memory_unmap(begin_, size_);
    }
    if (begin_ != 0) {
      api_.address_free(begin_, size_);
    }
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  std::byte* data() const {
    return reinterpret_cast<std::byte*>(begin_);  // NOLINT(performance-no-int-to-ptr): CUDA's
  }

 private:
  MappedRange(const DriverApi& api, size_t size) : api_(api), size_(size) {}

  const DriverApi& api_;
  const size_t size_;
  CUdeviceptr begin_ = 0;
  bool mapped_ = false;
};

// Forgotten first, since what is mapped next may lie there too.
class ExportedBlock final : public Memory::Block {
 public:
  ExportedBlock(std::unique_ptr<MappedRange> mapped, int fd, size_t size)
      : mapped_(std::move(mapped)),
        range_(mapped_->data(), std::make_shared<SharedBlock>(fd, size, BlockKind::kDevice)) {}

 private:
  const std::unique_ptr<MappedRange> mapped_;
  const SharedRange range_;
};

class ImportedBlock final : public SharedMapping {
 public:
  ImportedBlock(std::unique_ptr<MappedRange> mapped, size_t size)
      : SharedMapping({mapped->data(), size}), mapped_(std::move(mapped)) {}

 private:
  const std::unique_ptr<MappedRange> mapped_;
};

absl::StatusOr<size_t> RoundedUp(const DriverApi& api,
                                 const CUmemAllocationProp& properties,
                                 size_t bytes) {
  size_t unit = 0;
  absl::Status status = api.ToStatus(
      api.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "size of pages");
  if (!status.ok()) {
    return status;
  }
  return RoundUp(bytes, unit);
}

}  // namespace

absl::StatusOr<Memory> AllocateExported(size_t bytes) {
  if (bytes == 0) {
    return Memory();
  }
  absl::StatusOr<const DriverApi*> found = DriverApi::Get();
  absl::StatusOr<CUmemLocation> device = CurrentDevice();
  if (!found.ok() || !device.ok()) {
    return found.ok() ? device.status() : found.status();
  }
  const DriverApi& api = **found;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kDescriptor;
  properties.location = *device;
  absl::StatusOr<size_t> size = RoundedUp(api, properties, bytes);
  if (!size.ok()) {
    return size.status();
  }
  Handle handle(api);
  absl::Status status = api.ToStatus(api.memory_create(handle.target(), *size, &properties, 0),
                                     absl::StrCat("allocate ", bytes, " bytes of the device"));
  if (!status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<MappedRange>> mapped =
      MappedRange::Map(api, handle, *size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (!mapped.ok()) {
    return mapped.status();
  }
  std::byte* const data = (*mapped)->data();
  int fd = -1;
  status = api.ToStatus(api.export_handle(&fd, handle.get(), kDescriptor, 0), "export memory");
  if (!status.ok()) {
    return status;
  }
  auto block = std::make_unique<ExportedBlock>(*std::move(mapped), fd, *size);
  cudaError_t zeroed = cudaMemset(data, 0, *size);
  zeroed = zeroed == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : zeroed;
  status = ToStatus(zeroed, "zero device memory");
  if (!status.ok()) {
    return status;
  }
  return Memory(std::move(block), data, bytes);
}

absl::StatusOr<std::unique_ptr<SharedMapping>> ImportExported(int fd, size_t bytes) {
  absl::StatusOr<const DriverApi*> found = DriverApi::Get();
  if (!found.ok()) {
    return found.status();
  }
  const DriverApi& api = **found;
  Handle handle(api);
  // As the driver takes a descriptor.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* const named = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  if (const CUresult imported = api.import_handle(handle.target(), named, kDescriptor);
      imported != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(
        api.ToStatus(imported, "import memory of another process").message());
  }
  absl::StatusOr<std::unique_ptr<MappedRange>> mapped =
      MappedRange::Map(api, handle, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
  if (!mapped.ok()) {
    return absl::UnavailableError(
        absl::StrCat("memory of another process's device can't be reached: ",
                     std::string(mapped.status().message())));
  }
  return std::make_unique<ImportedBlock>(*std::move(mapped), bytes);
}

}  // namespace baton::kernels::cuda
