#include "kernels/cuda/cuda_session.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/cublas/cublaslt_api.h"
#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/nccl/nccl_links.h"
#include "kernels/cuda/runtime/copy_stream.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/landing_stream.h"
#include "kernels/cuda/runtime/side_streams.h"

namespace baton::kernels::cuda {
namespace {

class SessionImpl final : public Session {
 public:
  SessionImpl(std::unique_ptr<DeviceQueue> queue,
              std::unique_ptr<LandingStream> landing,
              std::unique_ptr<SideStreams> side,
              std::unique_ptr<CopyStream> copies)
      : queue_(std::move(queue)),
        landing_(std::move(landing)),
        graphs_(*queue_),
        exported_(*queue_, &graphs_, landing_.get()),
        space_(*queue_, &graphs_, landing_.get(), &exported_),
        side_(std::move(side)),
        copies_(std::move(copies)) {}
  DeviceQueue& queue() override { return *queue_; }
  MemorySpace& memory() override { return space_; }
  SideQueues* side() override { return side_.get(); }
  CopyQueue& copies() override { return *copies_; }
  OpGraphs& graphs() override { return graphs_; }
  std::vector<FoundLibrary> LoadLibraries() override {
    using Description = absl::StatusOr<std::string>;
    const absl::StatusOr<MatmulPlans*> products = queue_->matmul_plans();
    const absl::StatusOr<AttentionPlans*> attention = queue_->attention_plans();
    return {{.name = "cuBLASLt",
             .description = products.ok() ? Description((*products)->api().Description())
                                          : Description(products.status())},
            {.name = "cuDNN",
             .description = attention.ok() ? Description((*attention)->api().Description())
                                           : Description(attention.status())}};
  }
  absl::StatusOr<int64_t> MemoryLeft(double share) const override {
    size_t free = 0;
    size_t total = 0;
    if (absl::Status status = ToStatus(cudaMemGetInfo(&free, &total), "free memory of the device");
        !status.ok()) {
      return status;
    }
    return static_cast<int64_t>(share * static_cast<double>(total)) -
           static_cast<int64_t>(total - free);
  }
  absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeLinks() const override {
    return MakeNcclLinks();
  }

 private:
  const std::unique_ptr<DeviceQueue> queue_;
  const std::unique_ptr<LandingStream> landing_;
  GraphCache graphs_;
  ExportedSpace exported_;
  DeviceSpace space_;
  const std::unique_ptr<SideStreams> side_;
  const std::unique_ptr<CopyStream> copies_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionSizes& sizes) {
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(sizes.workspace_bytes);
  if (!queue.ok()) {
    return queue.status();
  }
  std::unique_ptr<SideStreams> side;
  if (sizes.side.count > 0) {
    absl::StatusOr<std::unique_ptr<SideStreams>> created =
        SideStreams::Create(**queue, sizes.side, sizes.last_side);
    if (!created.ok()) {
      return created.status();
    }
    side = *std::move(created);
  }
  absl::StatusOr<std::unique_ptr<CopyStream>> copies = CopyStream::Create();
  if (!copies.ok()) {
    return copies.status();
  }
  absl::StatusOr<std::unique_ptr<LandingStream>> landing = LandingStream::Create();
  if (!landing.ok()) {
    return landing.status();
  }
  return std::make_unique<SessionImpl>(
      *std::move(queue), *std::move(landing), std::move(side), *std::move(copies));
}

}  // namespace baton::kernels::cuda
