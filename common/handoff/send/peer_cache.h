// Connections to decode workers, made and handshaken ahead of their use.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/handoff/send/handshake_client.h"
#include "common/handoff/send/link_rate.h"
#include "common/transport/transport.h"
#include "proto/baton/kv/v1/manifest.pb.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::handoff {

// A decode worker with which layout and transport are agreed.
struct Peer {
  transport::Transport* transport = nullptr;
  std::string connection_data;
  std::shared_ptr<transport::Connection> connection;
  std::shared_ptr<LinkRate> rate = std::make_shared<LinkRate>();
};

// The endpoint of a transport; null when they offer none.
const worker::v1::TransportEndpoint* FindEndpoint(
    const std::vector<worker::v1::TransportEndpoint>& endpoints,
    const transport::Transport& transport);

// kFailedPrecondition when a decode worker's endpoints have none of `transports`.
absl::Status CheckOffers(const std::string& control_address,
                         const std::vector<worker::v1::TransportEndpoint>& endpoints,
                         const std::vector<transport::Transport*>& transports);

// One entry per control address; concurrent demands share one attempt. A peer that was dropped,
// whose connection is lost, or whose endpoint is another one than before (it restarted), is
// connected to anew, by the first transport that can. Thread-safe.
class PeerCache {
 public:
  using Ready = std::function<void(absl::StatusOr<std::shared_ptr<const Peer>>)>;
  // Attempts at a time, each with a thread of its own; one to a worker that does not answer takes
  // seconds.
  static constexpr int kMaxConnecting = 32;
  // Attempts that may wait for a thread; one more is refused.
  static constexpr size_t kMaxWaiting = 1024;

  PeerCache(std::vector<transport::Transport*> transports,
            HandshakeClient* handshake,
            kv::v1::KvLayout layout);
  // Waits for attempts that are running and gives up those that wait; all `ready`s have been called
  // then.
  ~PeerCache();
  PeerCache(const PeerCache&) = delete;
  PeerCache& operator=(const PeerCache&) = delete;

  // `ready` is called once: inside the call when the peer is connected or kMaxWaiting wait
  // (kUnavailable), else from a thread of the cache. `endpoints` are the peer's as its reservation
  // names them; empty: as its handshake does.
  void Get(const std::string& control_address,
           const std::vector<worker::v1::TransportEndpoint>& endpoints,
           Ready ready);
  // Forgets the peer after a failure, unless it has been re-made already.
  void Drop(const std::string& control_address, const std::shared_ptr<const Peer>& peer);

 private:
  struct Entry {
    std::shared_ptr<const Peer> peer;  // null while connecting
    std::vector<Ready> waiting;
  };

  struct Attempt {
    std::string control_address;
    std::vector<worker::v1::TransportEndpoint> endpoints;
  };

  static bool IsCurrent(const Peer& peer,
                        const std::vector<worker::v1::TransportEndpoint>& endpoints);
  // Null: nobody is connected to at the address, or to another than these endpoints are of.
  std::shared_ptr<const Peer> Current(const std::string& control_address,
                                      const std::vector<worker::v1::TransportEndpoint>& endpoints)
      const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has `ready` called by the attempt that runs, or by a new one; takes it unless it fails.
  absl::Status Await(const std::string& control_address,
                     const std::vector<worker::v1::TransportEndpoint>& endpoints,
                     Ready& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a thread does: the attempt, then those that wait.
  void ConnectAll(Attempt attempt);
  // Answers those who wait for the attempt.
  void Answer(const Attempt& attempt, const absl::StatusOr<std::shared_ptr<const Peer>>& peer);
  absl::StatusOr<std::shared_ptr<const Peer>> MakePeer(
      const std::string& control_address,
      std::vector<worker::v1::TransportEndpoint> endpoints) const;
  // Over the first transport that the endpoints offer and that connects; else the last one's error.
  absl::StatusOr<std::shared_ptr<const Peer>> ConnectTo(
      const std::vector<worker::v1::TransportEndpoint>& endpoints) const;

  const std::vector<transport::Transport*> transports_;
  HandshakeClient* const handshake_;
  const kv::v1::KvLayout layout_;

  absl::Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<Attempt> waiting_ ABSL_GUARDED_BY(mutex_);
  int connecting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::handoff
