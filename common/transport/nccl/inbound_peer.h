// The receiving half of a pair of devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/inbound_window.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/window_table.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {

// Bytes land in a slot of the link and are copied from there into their window, so that a sender
// never writes to one: what comes late, or from a sender that is gone, stays in the slot. Every
// chunk is received, whatever became of its post. Not thread-safe: used by the progress thread.
class InboundPeer {
 public:
  // Transfers of the peer that may be open.
  static constexpr size_t kMaxPosts = 4096;

  // Chunks that may wait: a sender tells of the next when its slot is free, and the slot here may
  // not be yet.
  static constexpr size_t kMaxChunks = 2 * kernels::DeviceLink::kSlots;

  // Told of a transfer that has been announced or refused, from any thread.
  using OnReady = std::function<void(uint64_t post, absl::Status verdict)>;

  // `links` and `memory`, of the windows' device, and `budget` are borrowed.
  InboundPeer(std::shared_ptr<Pipe> pipe,
              std::shared_ptr<WindowTable> windows,
              kernels::DeviceLinks& links,
              kernels::LandingMemory& memory,
              BlockBudget& budget,
              OnReady on_ready);
  // Gives up what is open.
  ~InboundPeer();
  InboundPeer(const InboundPeer&) = delete;
  InboundPeer& operator=(const InboundPeer&) = delete;

  // Takes a message of the peer, and asks for the next. An error, as of Advance, ends the
  // connection.
  absl::Status Take(const worker::v1::LinkMessage& message);
  void Ready(uint64_t post, const absl::Status& verdict);
  // Goes on connecting and receiving.
  absl::Status Advance(absl::Time now);

  bool connected() const { return up_; }
  // The link is to be looked at soon.
  bool busy() const { return (link_ != nullptr && !up_) || !chunks_.empty(); }
  bool has_posts() const { return !posts_.empty(); }
  absl::Time since() const { return since_; }
  // When the peer last said something; in the infinite future while it connects or something of it
  // is under way.
  absl::Time idle_since() const {
    return up_ && posts_.empty() && chunks_.empty() ? heard_ : absl::InfiniteFuture();
  }

 private:
  struct Post {
    std::shared_ptr<InboundWindow> window;
    uint64_t transfer_id = 0;
    int64_t total_bytes = 0;
    bool open = false;  // announced
  };
  struct Chunk {
    worker::v1::LinkChunk told;
    size_t slot = 0;
    size_t size = 0;
    bool going = false;
    absl::Time since = absl::InfiniteFuture();
  };

  absl::Status Handle(const worker::v1::LinkMessage& message);
  absl::Status TakeHello(const worker::v1::LinkHello& hello);
  absl::Status TakeRequest(const worker::v1::LinkRequest& request);
  absl::Status TakeChunk(const worker::v1::LinkChunk& told);
  absl::Status TakeRelease(const worker::v1::LinkRelease& release);
  // Receives chunks that are not carried, up to the first that is.
  absl::Status GoOn(absl::Time now);
  // Whether the oldest chunk has come; then it is in its window, or its post has ended.
  absl::StatusOr<bool> EndOldest(absl::Time now);
  // Of a chunk whose bytes are here.
  void Land(const Chunk& chunk);
  absl::Status Copy(const Post& post, const Chunk& chunk);
  // Answers, and forgets the post.
  void End(uint64_t id, const absl::Status& verdict);
  void Answer(uint64_t id, const absl::Status& verdict);
  void SayGo();

  const std::shared_ptr<Pipe> pipe_;
  const std::shared_ptr<WindowTable> windows_;
  kernels::DeviceLinks& links_;
  kernels::LandingMemory& memory_;
  const OnReady on_ready_;
  const absl::Time since_;
  absl::Time heard_ = since_;                  // of the peer
  std::unique_ptr<kernels::DeviceLink> link_;  // null before hello
  kernels::LinkSizes sizes_;                   // as hello says
  bool up_ = false;
  size_t next_slot_ = 0;
  std::unordered_map<uint64_t, Post> posts_;
  std::deque<Chunk> chunks_;  // that were told of and are not over
  BlockBudget::Share share_;  // while there are any
};

}  // namespace baton::transport::nccl
