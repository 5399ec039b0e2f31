#include "kernels/cuda/nccl/nccl_link.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/device_link.h"
#include "kernels/cuda/nccl/nccl_api.h"
#include "kernels/cuda/nccl/nccl_link_options.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kRanks = 2;

int RankOf(LinkEnd end) { return end == LinkEnd::kSender ? 0 : 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceLink>> NcclLink::Open(std::shared_ptr<const NcclApi> api,
                                                           int device,
                                                           const ncclUniqueId& id,
                                                           LinkEnd end,
                                                           const LinkSizes& sizes,
                                                           const NcclLinkOptions& options) {
  std::unique_ptr<NcclLink> link(new NcclLink(std::move(api), device, end, sizes, options));
  if (absl::Status status = link->Bring(id); !status.ok()) {
    return status;
  }
  return link;
}

absl::Status NcclLink::Bring(const ncclUniqueId& id) {
  absl::Status status = MakeCurrent(device_);
  int least = 0;
  int greatest = 0;
  if (status.ok()) {
    status = ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "find the priorities");
  }
  for (cudaStream_t* const stream : {&stream_, &loads_}) {
    if (status.ok()) {
      status = ToStatus(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
                        "create a stream");
    }
  }
  for (Slot& slot : slots_) {
    if (status.ok()) {
      status =
          ToStatus(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "create an event");
    }
    if (status.ok()) {
      void* data = nullptr;
      status = api_->ToStatus(
          api_->allocate(&data, sizes_.slot_bytes), "take memory of the device", nullptr);
      slot.data = static_cast<std::byte*>(data);
    }
  }
  if (!status.ok()) {
    return status;
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = sizes_.max_blocks;
  return api_->ToStatus(
      api_->init_rank(&comm_, kRanks, id, RankOf(end_), &config), "join a pair", nullptr);
}

NcclLink::~NcclLink() {
  cudaSetDevice(device_);
  if (comm_ != nullptr) {
    // Not while anything is under way: the peer's process would unmap what its kernel writes to.
    if (!registration_.empty() && AtRest()) {
      registration_.Clear(comm_);
    }
    // Also where nothing is under way: an orderly end would wait for the peer.
    api_->abort(comm_);
  }
  for (const cudaStream_t stream : {stream_, loads_}) {
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
  }
  for (const Slot& slot : slots_) {
    if (slot.done != nullptr) {
      cudaEventDestroy(slot.done);
    }
    if (slot.data != nullptr) {
      api_->free(slot.data);
    }
  }
}

absl::StatusOr<bool> NcclLink::Settled() const {
  ncclResult_t result = ncclSuccess;
  absl::Status status =
      api_->ToStatus(api_->async_error(comm_, &result), "look after a pair", comm_);
  status.Update(api_->ToStatus(result, "in the background", comm_));
  if (!status.ok()) {
    return status;
  }
  return result == ncclSuccess;
}

bool NcclLink::AtRest() const {
  const absl::StatusOr<bool> settled = Settled();
  return settled.ok() && *settled &&
         std::ranges::all_of(slots_, [](const Slot& slot) { return slot.move == Move::kNone; });
}

absl::Status NcclLink::Warm() {
  if (options_.registers_slots) {
    for (const Slot& slot : slots_) {
      if (absl::Status status = registration_.Add(comm_, {slot.data, sizes_.slot_bytes});
          !status.ok()) {
        return status;
      }
    }
  }
  for (size_t i = 0; i < WarmedSlots(); ++i) {
    if (absl::Status status = Queue(i, sizes_.slot_bytes); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclLink::Connected() {
  if (state_ == State::kJoining) {
    absl::StatusOr<bool> joined = Settled();
    if (!joined.ok() || !*joined) {
      return joined;
    }
    if (absl::Status status = Warm(); !status.ok()) {
      return status;
    }
    state_ = State::kWarming;
  }
  if (state_ == State::kWarming) {
    for (size_t i = 0; i < WarmedSlots(); ++i) {
      absl::StatusOr<bool> warm = Idle(i);
      if (!warm.ok() || !*warm) {
        return warm;
      }
    }
    state_ = State::kConnected;
  }
  return true;
}

std::span<const std::byte> NcclLink::slot(size_t index) const {
  return {slots_[index].data, sizes_.slot_bytes};
}

absl::Status NcclLink::Load(size_t index, std::span<const std::span<const std::byte>> pieces) {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes;
  size_t loaded = 0;
  for (const std::span<const std::byte> piece : pieces) {
    targets.push_back(slots_[index].data + loaded);
    sources.push_back(piece.data());
    sizes.push_back(piece.size());
    loaded += piece.size();
  }
  if (loaded > sizes_.slot_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded, " bytes for a slot of ", sizes_.slot_bytes));
  }
  absl::Status status = MakeCurrent(device_);
  if (status.ok()) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    status = ToStatus(cudaMemcpyBatchAsync(targets.data(),
                                           sources.data(),
                                           sizes.data(),
                                           sizes.size(),
                                           &attributes,
                                           &first,
                                           1,
                                           loads_),
                      "copy into a slot");
  }
  return status.ok() ? ToStatus(cudaStreamSynchronize(loads_), "wait for copies into a slot")
                     : status;
}

absl::Status NcclLink::Send(size_t index, size_t size) { return Queue(index, size); }

absl::Status NcclLink::Receive(size_t index, size_t size) { return Queue(index, size); }

absl::Status NcclLink::Queue(size_t index, size_t size) {
  Slot& slot = slots_[index];
  if (slot.move != Move::kNone || size > sizes_.slot_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", index, " is in use, or too small for ", size, " bytes"));
  }
  slot.move = Move::kQueued;
  slot.size = size;
  waiting_.push_back(index);
  return Advance();
}

absl::Status NcclLink::Advance() {
  while (!waiting_.empty()) {
    Slot& slot = slots_[waiting_.front()];
    absl::StatusOr<bool> settled = Settled();
    if (!settled.ok() || !*settled) {
      return settled.status();
    }
    if (slot.move == Move::kQueued) {
      if (absl::Status status = Launch(slot); !status.ok()) {
        return status;
      }
      continue;
    }
    if (absl::Status status = ToStatus(cudaEventRecord(slot.done, stream_), "mark a transfer");
        !status.ok()) {
      return status;
    }
    slot.move = Move::kRunning;
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status NcclLink::Launch(Slot& slot) {
  absl::Status status = MakeCurrent(device_);
  if (!status.ok()) {
    return status;
  }
  slot.move = Move::kLaunching;
  const int peer = kRanks - 1 - RankOf(end_);
  return end_ == LinkEnd::kSender
             ? api_->ToStatus(
                   api_->send(slot.data, slot.size, ncclUint8, peer, comm_, stream_), "send", comm_)
             : api_->ToStatus(api_->receive(slot.data, slot.size, ncclUint8, peer, comm_, stream_),
                              "receive",
                              comm_);
}

absl::StatusOr<bool> NcclLink::Idle(size_t index) {
  Slot& slot = slots_[index];
  if (absl::Status status = Advance(); !status.ok()) {
    return status;
  }
  if (slot.move != Move::kRunning) {
    return slot.move == Move::kNone;
  }
  const cudaError_t error = cudaEventQuery(slot.done);
  if (error == cudaErrorNotReady) {
    // A failure of the peer is not one of this device.
    absl::StatusOr<bool> settled = Settled();
    return settled.ok() ? absl::StatusOr<bool>(false) : settled;
  }
  if (absl::Status status = ToStatus(error, "wait for a transfer"); !status.ok()) {
    return status;
  }
  slot.move = Move::kNone;
  return true;
}

}  // namespace baton::kernels::cuda
