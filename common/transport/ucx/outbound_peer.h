// The sending half of a connection: puts the bytes of posts into slots that the receiver grants.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"

namespace baton::transport::ucx {

// A post asks for slots, fills each as it is granted, says so once a flush has confirmed that the
// bytes arrived, and completes with the receiver's verdict. One that ends early completes when none
// of its puts is open any more, and only then releases its slots. Not thread-safe: used by the
// progress thread.
class OutboundPeer {
 public:
  // A connection on which posts have ended and whose puts make no progress for this long is given
  // up: their sources must be free soon.
  static constexpr absl::Duration kStuck = absl::Seconds(2);

  using OnCompletion = std::function<void(Completion)>;

  // Says Hello. `completed` is called once for every started post.
  OutboundPeer(uint64_t connection, std::unique_ptr<Endpoint> endpoint, OnCompletion completed);
  // The endpoint must be closed.
  ~OutboundPeer();

  // An error means that the peer refuses the connection, with its status, or broke the rules, and
  // that the connection must end.
  absl::Status Take(const Message& message);
  bool welcomed() const { return peer_connection_.has_value(); }
  void Start(PostParams params);
  // Ignores an unknown tag.
  void Cancel(uint64_t tag, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Ends posts past their deadline, and the connection where it is stuck; returns the next
  // deadline.
  absl::Time EndOverdue(absl::Time now);
  // Every post ends with `reason`. Idempotent.
  void Close(const absl::Status& reason);
  // Completes posts that have ended and whose puts are over. Called after every progress.
  void Settle();

  Endpoint& endpoint() { return *endpoint_; }
  absl::Time since() const { return since_; }
  size_t open_posts() const { return posts_.size(); }

 private:
  struct Filled {
    Written written;
    bool arrived = false;
  };
  struct Post {
    PostParams params;
    int64_t total_bytes = 0;
    size_t run_index = 0;  // the next byte to put
    size_t position = 0;   // within the run
    int open_operations = 0;
    std::deque<std::shared_ptr<Filled>> filled;  // not yet said
    bool last_said = false;
    std::optional<absl::Status> ended;
  };

  absl::Status TakeWelcome(const Welcome& welcome);
  absl::Status TakeGrant(const Grant& grant);
  absl::Status TakeVerdict(const Verdict& verdict);
  void PutInto(uint64_t id, Post& post, Filled& filled);
  void SayWritten(Post& post);
  void Complete(Post& post);

  const uint64_t connection_;
  const std::unique_ptr<Endpoint> endpoint_;
  const OnCompletion completed_;
  const absl::Time since_;
  std::optional<uint64_t> peer_connection_;
  Welcome slots_;
  ucp_rkey_h rkey_ = nullptr;
  bool closed_ = false;
  uint64_t next_post_ = 1;
  std::unordered_map<uint64_t, Post> posts_;  // by Request::post
  std::unordered_map<uint64_t, uint64_t> post_of_tag_;
};

}  // namespace baton::transport::ucx
