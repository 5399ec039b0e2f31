// One end of a pair of devices: a communicator of two ranks.
#pragma once

#include <driver_types.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"
#include "kernels/cuda/nccl/nccl_api.h"
#include "kernels/cuda/nccl/nccl_link_options.h"
#include "kernels/cuda/nccl/nccl_registration.h"

namespace baton::kernels::cuda {

// Calls of NCCL may go on in the background (blocking=0), and the next one has to wait for that, so
// that moves queue up here. What connects two devices is made by the first transfer, of a whole
// slot, which is therefore part of connecting. So is that of every slot where slots are registered:
// the peer maps one when it meets it first.
class NcclLink final : public DeviceLink {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceLink>> Open(std::shared_ptr<const NcclApi> api,
                                                          int device,
                                                          const ncclUniqueId& id,
                                                          LinkEnd end,
                                                          const LinkSizes& sizes,
                                                          const NcclLinkOptions& options);
  ~NcclLink() override;

  absl::StatusOr<bool> Connected() override;
  std::span<const std::byte> slot(size_t index) const override;
  absl::Status Load(size_t index, std::span<const std::span<const std::byte>> pieces) override;
  absl::Status Send(size_t index, size_t size) override;
  absl::Status Receive(size_t index, size_t size) override;
  absl::StatusOr<bool> Idle(size_t index) override;

 private:
  enum class State : uint8_t { kJoining, kWarming, kConnected };
  enum class Move : uint8_t { kNone, kQueued, kLaunching, kRunning };
  struct Slot {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
    Move move = Move::kNone;
    size_t size = 0;
  };

  NcclLink(std::shared_ptr<const NcclApi> api,
           int device,
           LinkEnd end,
           const LinkSizes& sizes,
           const NcclLinkOptions& options)
      : api_(std::move(api)),
        device_(device),
        end_(end),
        sizes_(sizes),
        options_(options),
        registration_(api_) {}
  absl::Status Bring(const ncclUniqueId& id);
  // Whether the call before has come to its end.
  absl::StatusOr<bool> Settled() const;
  // Whether no call is under way and no kernel may be at a slot.
  bool AtRest() const;
  size_t WarmedSlots() const { return options_.registers_slots ? slots_.size() : 1; }
  // Registers slots, if at all, and moves what connects.
  absl::Status Warm();
  absl::Status Queue(size_t index, size_t size);
  absl::Status Launch(Slot& slot);
  // Launches what is queued, in order.
  absl::Status Advance();

  const std::shared_ptr<const NcclApi> api_;
  const int device_;
  const LinkEnd end_;
  const LinkSizes sizes_;
  const NcclLinkOptions options_;
  NcclRegistration registration_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaStream_t loads_ = nullptr;
  std::array<Slot, kSlots> slots_;
  std::deque<size_t> waiting_;  // slots whose moves are not launched yet, oldest first
  State state_ = State::kJoining;
};

}  // namespace baton::kernels::cuda
