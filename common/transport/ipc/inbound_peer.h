// The receiving half of a connection: copies what a sender points to into windows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/inbound_window.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/message.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

// Nobody but this side writes to a window, so nothing can land late: a sender that is frozen or
// gone has at most said where bytes are. Bytes that it changes while they are copied fail the
// segment's checksum. Not thread-safe: used by the progress thread.
class InboundPeer {
 public:
  // Transfers of the peer that may be open, and blocks that it may export.
  static constexpr size_t kMaxPosts = 4096;
  static constexpr size_t kMaxBlocks = 64;

  // Told of a transfer that has been announced or refused, from any thread.
  using OnReady = std::function<void(uint64_t post, absl::Status verdict)>;

  // `device`, which is borrowed, maps memory of devices; null: none is mapped.
  InboundPeer(Descriptor socket,
              std::shared_ptr<WindowTable> windows,
              kernels::LandingMemory* device,
              OnReady on_ready);
  // Gives up what is open.
  ~InboundPeer();
  InboundPeer(const InboundPeer&) = delete;
  InboundPeer& operator=(const InboundPeer&) = delete;

  // Takes one message of the peer, if one is there. An error ends the connection: the peer is gone,
  // broke the rules, or is not of this process's user.
  absl::Status Advance();
  void Ready(uint64_t post, const absl::Status& verdict);

  Channel& channel() { return channel_; }
  bool introduced() const { return introduced_; }
  absl::Time since() const { return since_; }

 private:
  struct Post {
    std::shared_ptr<InboundWindow> window;
    uint64_t transfer_id = 0;
    int64_t total_bytes = 0;
    bool open = false;          // announced
    std::vector<Piece> pieces;  // that came with the request
  };

  absl::Status Take(const Hello& hello, const Descriptor& attached);
  absl::Status Take(const Export& exported, const Descriptor& attached);
  absl::Status Take(const Request& request, const Descriptor& attached);
  absl::Status Take(const Written& written, const Descriptor& attached);
  absl::Status Take(const Release& release, const Descriptor& attached);
  // Messages that only receivers send.
  template <typename Body>
  absl::Status Take(const Body& body, const Descriptor& attached);

  // A block of the peer's memory.
  struct Block {
    std::unique_ptr<kernels::SharedMapping> mapping;
    bool of_device = false;
  };

  // Pieces of an open post.
  void TakePieces(const Post& post, const Written& written);
  absl::Status Copy(const Post& post, const Written& written) const;
  absl::Status CopyPiece(const Post& post, const Piece& piece) const;
  absl::StatusOr<std::unique_ptr<kernels::SharedMapping>> Map(const Export& exported, int fd) const;
  // Answers, and forgets the post.
  void End(uint64_t id, const absl::Status& verdict);
  void Answer(uint64_t id, const absl::Status& verdict);

  const std::shared_ptr<WindowTable> windows_;
  kernels::LandingMemory* const device_;
  const OnReady on_ready_;
  const absl::Time since_;
  Channel channel_;
  bool introduced_ = false;
  std::unordered_map<uint32_t, Block> blocks_;
  std::unordered_map<uint64_t, Post> posts_;
};

}  // namespace baton::transport::ipc
