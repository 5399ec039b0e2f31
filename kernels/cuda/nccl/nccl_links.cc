#include "kernels/cuda/nccl/nccl_links.h"

#include <cuda_runtime_api.h>
#include <malloc.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/device_link.h"
#include "kernels/cuda/libraries/library_paths.h"
#include "kernels/cuda/nccl/nccl_api.h"
#include "kernels/cuda/nccl/nccl_link.h"
#include "kernels/cuda/nccl/nccl_link_options.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {
namespace {

// What is at least so large malloc maps by itself and gives back when it is freed.
constexpr int kMappedBytes = 8 << 20;

class NcclLinks final : public DeviceLinks {
 public:
  NcclLinks(std::shared_ptr<const NcclApi> api, int device, const NcclLinkOptions& options)
      : api_(std::move(api)), device_(device), options_(options) {}

  std::string Description() const override { return absl::StrCat("NCCL ", api_->Description()); }

  absl::StatusOr<std::string> NewId() override {
    ncclUniqueId id;
    if (absl::Status status =
            api_->ToStatus(api_->unique_id(&id), "make a unique id", /*comm=*/nullptr);
        !status.ok()) {
      return status;
    }
    return std::string(std::begin(id.internal), std::end(id.internal));
  }

  absl::StatusOr<std::unique_ptr<DeviceLink>> Open(const std::string& id,
                                                   LinkEnd end,
                                                   const LinkSizes& sizes) override {
    ncclUniqueId unique;
    if (id.size() != sizeof(unique.internal)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "NCCL's ids have ", sizeof(unique.internal), " bytes, this one has ", id.size()));
    }
    std::memcpy(unique.internal, id.data(), id.size());
    return NcclLink::Open(api_, device_, unique, end, sizes, options_);
  }

 private:
  const std::shared_ptr<const NcclApi> api_;
  const int device_;
  const NcclLinkOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks(const NcclLinkOptions& options) {
  int device = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "find the current device");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::shared_ptr<const NcclApi>> api =
      LoadNccl(LibrarySearch::OfProcess(kNcclVariable));
  if (!api.ok()) {
    return api.status();
  }
  if (absl::Status status = options.registers_slots ? (*api)->CanRegister() : absl::OkStatus();
      !status.ok()) {
    return status;
  }
  // A communicator takes some 35 MiB of the host while it is made, in a thread of its own. malloc
  // would learn from the first to take as much from the heaps of threads, and keep it in each.
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  return std::make_unique<NcclLinks>(*std::move(api), device, options);
}

}  // namespace baton::kernels::cuda
