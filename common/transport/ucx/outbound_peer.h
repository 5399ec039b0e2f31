// The sending half of a connection: writes the bytes of posts into slots that the receiver grants.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/slot_writer.h"

namespace baton::transport::ucx {

// A post asks for slots, has each written as it is granted, and completes with the receiver's
// verdict. One that ends early completes when nothing is being written any more, and only then
// releases its slots. Not thread-safe: used by the progress thread.
class OutboundPeer {
 public:
  // A connection on which posts have ended and that takes none of their bytes for this long is
  // given up: their sources must be free soon.
  static constexpr absl::Duration kStuck = absl::Seconds(2);
  // So is one that brings nothing for this long where a verdict is due, so that later posts find a
  // live one. What is under way may come first: 4 MiB take as long at 7 Mbit/s.
  static constexpr absl::Duration kSilent = absl::Seconds(5);

  using OnCompletion = std::function<void(Completion)>;

  // Says Hello. `completed` is called once for every started post, and must start none.
  OutboundPeer(uint64_t connection, std::unique_ptr<Endpoint> endpoint, OnCompletion completed);
  // The endpoint must be closed.
  ~OutboundPeer();

  // An error means that the peer refuses the connection, with its status, or broke the rules, and
  // that the connection must end.
  absl::Status Take(const Message& message);
  bool welcomed() const { return peer_connection_.has_value(); }
  void Start(PostParams params);
  // Sends `source` to be dropped, as a post of which only `completed` hears.
  void Probe(std::span<const std::byte> source, absl::Time deadline, OnCompletion completed);
  // Ignores an unknown tag.
  void Cancel(uint64_t tag, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Ends posts past their deadline, and the connection where it is stuck; returns the next
  // deadline.
  absl::Time EndOverdue(absl::Time now);
  // Every post ends with `reason`. Idempotent.
  void Close(const absl::Status& reason);
  // Completes posts that have ended and of which nothing is being written. Called after every
  // progress.
  void Settle();

  Endpoint& endpoint() { return *endpoint_; }
  absl::Time since() const { return since_; }
  size_t open_posts() const { return posts_.size(); }

 private:
  struct Post {
    PostParams params;
    OnCompletion completed;
    int64_t total_bytes = 0;
    size_t run_index = 0;  // the next byte to write
    size_t position = 0;   // within the run
    int open_writes = 0;
    bool answered = false;  // by the receiver's verdict
    std::optional<absl::Status> ended;
  };

  absl::Status TakeWelcome(const Welcome& welcome);
  absl::Status TakeGrant(const Grant& grant);
  absl::Status TakeVerdict(const Verdict& verdict);
  bool IsStuck(absl::Time now) const;
  void Ask(PostParams params, OnCompletion completed);
  // The next bytes of the post that fit into a slot: their places go to `written`.
  std::vector<std::span<const std::byte>> TakePieces(Post& post, Written& written) const;

  const uint64_t connection_;
  const std::unique_ptr<Endpoint> endpoint_;
  const OnCompletion completed_;
  const absl::Time since_;
  std::optional<uint64_t> peer_connection_;
  Welcome slots_;
  std::unique_ptr<SlotWriter> writer_;
  absl::Time last_heard_ = absl::InfinitePast();
  bool closed_ = false;
  uint64_t next_post_ = 1;
  std::unordered_map<uint64_t, Post> posts_;  // by Request::post
  std::unordered_map<uint64_t, uint64_t> post_of_tag_;
  // When posts were released whose verdict has not come.
  std::unordered_map<uint64_t, absl::Time> unanswered_;
};

}  // namespace baton::transport::ucx
