// The sending half of a connection: says where the bytes of posts are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/message.h"
#include "common/transport/transport.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

// A post is requested, told piece by piece once the receiver is ready for it, and completes with
// the receiver's verdict, behind which the receiver reads nothing of it. Bytes in blocks that the
// receiver has mapped (kernels/core/shared_blocks.h) are read where they lie, others of the host go
// in messages. Not thread-safe: used by the progress thread.
class OutboundPeer {
 public:
  // The connection is given up when the verdict of a post that was given up takes longer: its
  // source must be free soon. What the receiver then reads there, it can't commit.
  static constexpr absl::Duration kStuck = absl::Seconds(2);
  // Bytes of the host that one message points to, so that a receiver can turn to its other peers
  // in between; a device copies by itself.
  static constexpr uint64_t kPointedBytes = uint64_t{4} << 20;
  // The most blocks that a receiver takes.
  static constexpr size_t kMaxBlocks = 64;

  using OnCompletion = std::function<void(Completion)>;

  // Says Hello. `completed` is called once for every started post, and must start none.
  OutboundPeer(Descriptor socket, OnCompletion completed);
  // Every post has ended.
  ~OutboundPeer();
  OutboundPeer(const OutboundPeer&) = delete;
  OutboundPeer& operator=(const OutboundPeer&) = delete;

  void Start(PostParams params);
  // Ignores an unknown tag.
  void Cancel(uint64_t tag, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Takes what the peer has sent and sends what the socket takes. An error ends the connection.
  absl::Status Advance();
  // Gives up posts past their deadline; kUnavailable when the peer is stuck. `next` becomes the
  // next time to look, if that is earlier.
  absl::Status EndOverdue(absl::Time now, absl::Time& next);
  // Every post ends with `reason`.
  void Close(const absl::Status& reason);

  // Whether the peer has answered, also for every block that there was.
  bool welcomed() const { return welcomed_ && unanswered_ == 0; }
  // Whether posts may have sources in the blocks of devices that there were.
  bool reads_devices() const { return reads_devices_; }
  // Something is to be sent when the socket takes it.
  bool wants_to_send() const { return !channel_.idle() || !ready_.empty(); }
  const Channel& channel() const { return channel_; }
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

  absl::Status Take(const Message& message);
  absl::Status TakeWelcome(const Welcome& welcome);
  absl::Status TakeImported(const Imported& imported);
  absl::Status TakeReady(const Ready& ready);
  absl::Status TakeVerdict(const Verdict& verdict);
  void ExportAll(kernels::BlockKind kind);
  void ExportBlock(const std::shared_ptr<const kernels::SharedBlock>& block);
  // kFailedPrecondition when a source is a device's and the peer can't read it.
  absl::Status CheckSources(const PostParams& params) const;
  void GiveUp(uint64_t id, Post& post, const absl::Status& reason);
  void End(uint64_t id, absl::Status status);
  // Tells the next pieces of the post that has waited longest.
  void TellPieces();
  Written NextPieces(uint64_t id, Post& post);
  // Where `bytes` lie in a block that the peer has mapped; its offset in `source`. 0: in none, or
  // in one that the peer is told of now.
  uint32_t BlockOf(std::span<const std::byte> bytes, uint64_t& source);

  const OnCompletion completed_;
  const absl::Time since_;
  Channel channel_;
  bool welcomed_ = false;
  bool reads_devices_ = false;
  size_t unanswered_ = 0;  // exports
  uint64_t next_post_ = 1;
  std::unordered_map<uint64_t, Post> posts_;  // by Request::post
  std::unordered_map<uint64_t, uint64_t> post_of_tag_;
  std::deque<uint64_t> ready_;  // posts with pieces to tell, each once
  std::unordered_map<uint32_t, std::shared_ptr<const kernels::SharedBlock>> exported_;
  std::unordered_map<uint32_t, kernels::BlockKind> imported_;
};

}  // namespace baton::transport::ipc
