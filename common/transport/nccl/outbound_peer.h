// The sending half of a pair of devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/pipe.h"
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
  using OnCompletion = std::function<void(Completion)>;

  // Says hello. `budget` is borrowed. `completed` is called once for every started post, and must
  // start none.
  OutboundPeer(std::shared_ptr<Pipe> pipe,
               std::unique_ptr<kernels::DeviceLink> link,
               const std::string& id,
               const kernels::LinkSizes& sizes,
               BlockBudget& budget,
               OnCompletion completed);
  // Every post has ended.
  ~OutboundPeer();
  OutboundPeer(const OutboundPeer&) = delete;
  OutboundPeer& operator=(const OutboundPeer&) = delete;

  void Start(PostParams params);
  // Ignores an unknown tag.
  void Cancel(uint64_t tag, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Takes a message of the peer. An error, as of Advance, ends the connection.
  absl::Status Take(const worker::v1::LinkMessage& message);
  // Goes on connecting and sending.
  absl::Status Advance(absl::Time now);
  // Gives up posts past their deadline; kUnavailable when the peer is stuck. `next` becomes the
  // next time to look, if that is earlier.
  absl::Status EndOverdue(absl::Time now, absl::Time& next);
  // Every post ends with `reason`, and nothing of them is read any more.
  void Close(const absl::Status& reason);

  // Bytes can go, on both ends.
  bool connected() const { return link_up_ && peer_up_; }
  // The link is to be looked at soon.
  bool busy() const { return !link_up_ || !flights_.empty() || !ready_.empty(); }
  absl::Time since() const { return since_; }

 private:
  struct Post {
    PostParams params;
    int64_t total_bytes = 0;
    size_t run_index = 0;  // the next byte to tell
    size_t position = 0;   // within the run
    std::optional<absl::Status> given_up;
    absl::Time given_up_at = absl::InfiniteFuture();
  };
  // A chunk that was told and is not over.
  struct Flight {
    size_t slot = 0;
    size_t size = 0;
    bool carried = false;
    bool going = false;
    absl::Time since = absl::InfiniteFuture();
  };

  absl::Status TakeReady(const worker::v1::LinkReady& ready);
  absl::Status TakeGo();
  absl::Status TakeVerdict(const worker::v1::LinkVerdict& verdict);
  // Tells a chunk of the post that has waited longest.
  absl::Status TellChunk();
  // The next bytes that go in one way. `sources` are theirs.
  worker::v1::LinkChunk NextChunk(uint64_t id,
                                  Post& post,
                                  std::vector<std::span<const std::byte>>& sources) const;
  void GiveUp(uint64_t id, Post& post, const absl::Status& reason);
  void End(uint64_t id, absl::Status status);

  const std::shared_ptr<Pipe> pipe_;
  std::unique_ptr<kernels::DeviceLink> link_;
  const kernels::LinkSizes sizes_;
  BlockBudget::Share share_;  // while there are flights
  const OnCompletion completed_;
  const absl::Time since_;
  bool link_up_ = false;
  bool peer_up_ = false;
  uint64_t next_post_ = 1;
  size_t next_slot_ = 0;
  std::unordered_map<uint64_t, Post> posts_;  // by LinkRequest.post
  std::unordered_map<uint64_t, uint64_t> post_of_tag_;
  std::deque<uint64_t> ready_;  // posts with bytes to tell, each once
  std::deque<Flight> flights_;  // in the order they were told
};

}  // namespace baton::transport::nccl
