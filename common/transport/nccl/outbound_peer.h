// The sending half of a pair of devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/transport.h"
#include "kernels/core/device_link.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {

// A post is requested, cut into chunks once the receiver is ready for it, and completes with the
// receiver's verdict. Bytes of the device are gathered in a slot of the link, from where they go
// when the receiver says that it receives; others go with the message. At most as many chunks as
// the link has slots wait for the receiver's word. Not thread-safe: used by the progress thread.
class OutboundPeer {
 public:
  // Says hello. `budget` is borrowed. `completed` is called once for every started post, and must
  // start none.
  OutboundPeer(std::shared_ptr<Pipe> pipe,
               std::unique_ptr<kernels::DeviceLink> link,
               const std::string& id,
               const kernels::LinkSizes& sizes,
               BlockBudget& budget,
               OutboundPosts::OnCompletion completed);
  // Every post has ended.
  ~OutboundPeer();
  OutboundPeer(const OutboundPeer&) = delete;
  OutboundPeer& operator=(const OutboundPeer&) = delete;

  void Start(PostParams params);
  OutboundPosts& posts() { return posts_; }
  // Takes a message of the peer, and asks for the next. An error, as of Advance, ends the
  // connection.
  absl::Status Take(const worker::v1::LinkMessage& message);
  // Goes on connecting and sending.
  absl::Status Advance(absl::Time now);
  // Every post ends with `reason`, and nothing of them is read any more.
  void Close(const absl::Status& reason);

  // Bytes can go, on both ends.
  bool connected() const { return link_up_ && peer_up_; }
  // The link is to be looked at soon.
  bool busy() const { return !link_up_ || !flights_.empty() || posts_.has_ready(); }
  absl::Time since() const { return since_; }

 private:
  // A chunk that was told and is not over.
  struct Flight {
    size_t slot = 0;
    size_t size = 0;
    bool carried = false;
    bool going = false;
    absl::Time since = absl::InfiniteFuture();
  };

  absl::Status Handle(const worker::v1::LinkMessage& message);
  absl::Status TakeGo();
  // Tells a chunk of the post that has waited longest.
  absl::Status TellChunk();
  // The next bytes that go in one way. `sources` are theirs.
  worker::v1::LinkChunk NextChunk(uint64_t id,
                                  OutboundPosts::Post& post,
                                  std::vector<std::span<const std::byte>>& sources) const;

  const std::shared_ptr<Pipe> pipe_;
  std::unique_ptr<kernels::DeviceLink> link_;
  const kernels::LinkSizes sizes_;
  BlockBudget::Share share_;  // while there are flights
  const absl::Time since_;
  bool link_up_ = false;
  bool peer_up_ = false;
  size_t next_slot_ = 0;
  OutboundPosts posts_;         // numbered as in LinkRequest.post
  std::deque<Flight> flights_;  // in the order they were told
};

}  // namespace baton::transport::nccl
