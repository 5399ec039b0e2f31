// The receiving half of a connection: grants slots, and copies what was written to them into
// windows.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/inbound_window.h"
#include "common/transport/inbox.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/landing_slots.h"
#include "common/transport/ucx/message.h"
#include "common/transport/window_table.h"

namespace baton::transport::ucx {

// A slot is granted to one post and comes back by Written (all its bytes arrived), by Release (the
// sender confirms that none will), or with the mapping when the connection has ended. The copy into
// the window is the fence: whatever a peer puts late stays in its slots. Slots of a transfer that
// has ended here while its sender has not confirmed are quarantined; those without memory are free
// at once, as a late message is dropped. Not thread-safe: used by the progress thread.
class InboundPeer {
 public:
  // Transfers of the peer that may be open.
  static constexpr size_t kMaxPosts = 4096;
  // Of the slots that a transfer may hold, so that one can be written while others are taken.
  static constexpr int64_t kMaxHeldBytes = int64_t{4} << 20;

  // Transfers that are announced later come back through `inbox` as a call of `on_ready`.
  using OnReady = std::function<void(uint64_t connection, uint64_t post, absl::Status verdict)>;

  InboundPeer(uint64_t connection,
              std::unique_ptr<Endpoint> endpoint,
              std::shared_ptr<WindowTable> windows,
              OnReady on_ready);
  // The endpoint must be closed.
  ~InboundPeer();

  // Answers Hello. `slots` are the peer's from now on.
  void Welcome(const Hello& hello, std::unique_ptr<LandingSlots> slots);
  // Answers Hello, instead: the peer will close the connection.
  void Refuse(const Hello& hello, const absl::Status& reason);
  bool welcomed() const { return slots_ != nullptr; }
  // A message of the peer; an error means that it broke the rules, and the connection must end.
  absl::Status Take(const Message& message);
  void Ready(uint64_t post, const absl::Status& verdict);
  // Ends every transfer with `reason` and the connection. Idempotent.
  void Close(const absl::Status& reason);

  bool ended() const { return ended_; }
  Endpoint& endpoint() { return *endpoint_; }
  absl::Time since() const { return since_; }
  size_t open_posts() const { return posts_.size(); }
  size_t granted_slots() const;
  // Of the memory that the peer may put into.
  int64_t memory_bytes() const;
  // Ends the transfers whose windows have given them up; called now and then.
  void EndGivenUp();
  size_t quarantined_slots() const;
  // When the longest quarantined slot became so; InfiniteFuture without one.
  absl::Time quarantined_since() const;

 private:
  struct Post {
    // Without a window, of a probe, what is written is only counted.
    absl::Status Write(int64_t offset, std::span<const std::byte> bytes);
    absl::Status Finish();
    bool given_up() const;

    std::shared_ptr<InboundWindow> window;
    uint64_t transfer_id = 0;
    int64_t total_bytes = 0;
    int64_t written_bytes = 0;
    bool open = false;                             // announced
    absl::Time ended_at = absl::InfiniteFuture();  // when its verdict was said
    bool ended() const { return ended_at != absl::InfiniteFuture(); }
    bool queued = false;
    std::vector<LandingSlots::Granted> held;
  };

  absl::Status TakeRequest(const Request& request);
  absl::Status TakeWritten(const Written& written);
  void TakeRelease(const Release& release);
  // What the pieces may take their bytes from.
  std::span<const std::byte> BytesOf(const Written& written) const;
  absl::Status Copy(Post& post, const Written& written);
  bool WantsSlot(const Post& post) const;
  void Enqueue(uint64_t id, Post& post);
  void GrantSlots();
  // The verdict; the post stays while it holds slots with memory.
  void End(uint64_t id, const absl::Status& verdict);
  void ReturnSlots(Post& post);
  void Forget(uint64_t id);

  const uint64_t connection_;
  const std::unique_ptr<Endpoint> endpoint_;
  const std::shared_ptr<WindowTable> windows_;
  const OnReady on_ready_;
  const absl::Time since_;
  uint64_t peer_connection_ = 0;
  std::unique_ptr<LandingSlots> slots_;
  bool ended_ = false;
  std::unordered_map<uint64_t, Post> posts_;
  std::deque<uint64_t> waiting_;  // open posts that want a slot, each once
};

}  // namespace baton::transport::ucx
