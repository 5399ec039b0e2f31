// Any messages of a sender to the receiving half of a pair of devices: each is two bytes of size
// and as many of a LinkMessage. A hello's id is made the one that there is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"

#include "common/transport/completion_queue.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/inbound_peer.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"
#include "tests/kernels/device_double/local_links.h"

namespace {

using baton::transport::CompletionQueue;
using baton::transport::Window;
using baton::transport::WindowTable;
using baton::transport::nccl::InboundPeer;
using baton::worker::v1::LinkMessage;

// Enough for what a seed has; memory of a slot that a hello asks for is taken.
constexpr uint64_t kMostSlotBytes = 4096;

class DeafPipe final : public baton::transport::nccl::Pipe {
 public:
  void Read() override {}
  void Send(LinkMessage /*message*/) override {}
  void Close() override {}
};

// The peer, and the transfers 1 and 2 of 64 bytes that it may send.
class Receiver {
 public:
  Receiver() {
    for (uint64_t id = 1; id <= 2; ++id) {
      (void)WindowTable::Announce({.window = window_.get(),
                                   .runs = {{static_cast<int64_t>(id * 64), 64}},
                                   .transfer_id = id,
                                   .tag = id,
                                   .checksum = baton::transport::Checksum::kWordSum});
    }
  }

  // False when the stream is at its end.
  bool Take(LinkMessage message) {
    if (message.has_hello()) {
      if (message.hello().slot_bytes() > kMostSlotBytes) {
        return false;
      }
      const std::string id = *links_.NewId();
      end_ = *links_.Open(id, baton::kernels::LinkEnd::kSender, {.slot_bytes = kMostSlotBytes});
      message.mutable_hello()->set_id(id);
    }
    if (message.has_request() && message.request().window().empty()) {
      message.mutable_request()->set_window(window_->descriptor());
    }
    const bool goes = message.has_chunk() && message.chunk().carried().empty();
    if (!peer_.Take(message).ok()) {
      return false;
    }
    for (auto& [post, verdict] : std::exchange(ready_, {})) {
      peer_.Ready(post, verdict);
    }
    if (goes) {
      uint64_t size = 0;
      for (const auto& piece : message.chunk().pieces()) {
        size += piece.size();
      }
      (void)end_->Send(next_slot_++ % baton::kernels::DeviceLink::kSlots, size);
    }
    return peer_.Advance(absl::Now()).ok();
  }

 private:
  baton::kernels::LocalLinks links_{baton::kernels::HostMemory()};
  std::vector<std::byte> memory_ = std::vector<std::byte>(256);
  const std::shared_ptr<WindowTable> windows_ =
      std::make_shared<WindowTable>(std::make_shared<CompletionQueue>());
  const std::unique_ptr<Window> window_ =
      *windows_->Register({std::span(memory_)}, baton::kernels::HostLanding());
  std::unique_ptr<baton::kernels::DeviceLink> end_;
  size_t next_slot_ = 0;
  std::deque<std::pair<uint64_t, absl::Status>> ready_;
  baton::transport::nccl::BlockBudget budget_{128};
  InboundPeer peer_{
      std::make_shared<DeafPipe>(),
      windows_,
      links_,
      baton::kernels::HostLanding(),
      budget_,
      [this](uint64_t post, const absl::Status& verdict) { ready_.emplace_back(post, verdict); }};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Receiver receiver;
  while (size >= 2) {
    const size_t length = std::min<size_t>(data[0] + 256 * size_t{data[1]}, size - 2);
    LinkMessage message;
    if (!message.ParseFromArray(data + 2, static_cast<int>(length)) ||
        !receiver.Take(std::move(message))) {
      break;
    }
    data += 2 + length;
    size -= 2 + length;
  }
  return 0;
}
