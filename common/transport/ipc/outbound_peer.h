// The sending half of a connection: says where the bytes of posts are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/message.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/transport.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

// A post is requested, with its pieces where one message tells all of them, else told piece by
// piece once the receiver is ready for it, and completes with the receiver's verdict, behind which
// the receiver reads nothing of it. Bytes in blocks that the receiver has mapped
// (kernels/core/shared_blocks.h) are read where they lie, others of the host go in messages. Not
// thread-safe: used by the progress thread.
class OutboundPeer {
 public:
  // Bytes of the host that one message points to, so that a receiver can turn to its other peers
  // in between; a device copies by itself.
  static constexpr uint64_t kPointedBytes = uint64_t{4} << 20;
  // The most blocks that a receiver takes.
  static constexpr size_t kMaxBlocks = 64;

  // Says Hello. `completed` is called once for every started post, and must start none.
  OutboundPeer(Descriptor socket, OutboundPosts::OnCompletion completed);
  // Every post has ended.
  ~OutboundPeer();
  OutboundPeer(const OutboundPeer&) = delete;
  OutboundPeer& operator=(const OutboundPeer&) = delete;

  void Start(PostParams params);
  OutboundPosts& posts() { return posts_; }
  // Takes what the peer has sent and sends what the socket takes. An error ends the connection.
  absl::Status Advance();
  // Every post ends with `reason`.
  void Close(const absl::Status& reason) { posts_.Close(reason); }

  // Whether the peer has answered, also for every block that there was.
  bool welcomed() const { return welcomed_ && unanswered_ == 0; }
  // Whether posts may have sources in the blocks of devices that there were.
  bool reads_devices() const { return reads_devices_; }
  // Something is to be sent when the socket takes it.
  bool wants_to_send() const { return !channel_.idle() || posts_.has_ready(); }
  const Channel& channel() const { return channel_; }
  absl::Time since() const { return since_; }

 private:
  absl::Status Take(const Message& message);
  absl::Status TakeWelcome(const Welcome& welcome);
  absl::Status TakeImported(const Imported& imported);
  void ExportAll(kernels::BlockKind kind);
  void ExportBlock(const std::shared_ptr<const kernels::SharedBlock>& block);
  // kFailedPrecondition when a source is a device's and the peer can't read it.
  absl::Status CheckSources(const PostParams& params) const;
  // All pieces of a post, which is told then, if a request has room for them and they lie in
  // blocks; else none.
  std::vector<Piece> AllPieces(uint64_t id, OutboundPosts::Post& post);
  // Tells the next pieces of the post that has waited longest.
  void TellPieces();
  Written NextPieces(uint64_t id, OutboundPosts::Post& post);
  // Where `bytes` lie in a block that the peer has mapped; its offset in `source`. 0: in none, or
  // in one that the peer is told of now.
  uint32_t BlockOf(std::span<const std::byte> bytes, uint64_t& source);

  const OutboundPosts::OnCompletion completed_;
  const absl::Time since_;
  Channel channel_;
  bool welcomed_ = false;
  bool reads_devices_ = false;
  size_t unanswered_ = 0;  // exports
  OutboundPosts posts_;    // numbered as in Request::post
  std::unordered_map<uint32_t, std::shared_ptr<const kernels::SharedBlock>> exported_;
  std::unordered_map<uint32_t, kernels::BlockKind> imported_;
};

}  // namespace baton::transport::ipc
