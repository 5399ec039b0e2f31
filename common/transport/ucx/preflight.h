// What a new connection carries, held against a floor before the connection is used.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"
#include "common/transport/ucx/outbound_peer.h"

namespace baton::transport::ucx {

// Sends bytes that the peer drops, at most kRounds times: the first round shows a fresh connection
// that TCP still holds back. Not thread-safe: used by the progress thread. Borrows `peer`, and must
// outlive the round that it has begun there.
class Preflight {
 public:
  static constexpr int kRounds = 3;

  // `floor` in bytes per second.
  Preflight(OutboundPeer& peer, double floor);

  // Called after every progress; the verdict once there is one: OK as soon as a round reaches the
  // floor, kFailedPrecondition with the fastest where none does, or why a round failed.
  std::optional<absl::Status> Advance(absl::Time now);

 private:
  void StartRound(absl::Time now);

  OutboundPeer& peer_;
  const double floor_;
  const std::vector<std::byte> source_;
  int rounds_ = 0;
  double fastest_ = 0;
  absl::Time started_;
  std::optional<absl::Status> ended_;  // of the round
};

// "1.25 Gbit/s"
std::string GigabitsPerSecond(double bytes_per_second);

}  // namespace baton::transport::ucx
