#include "common/transport/ucx/preflight.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/outbound_peer.h"

namespace baton::transport::ucx {
namespace {

// A round at the floor takes this long, unless that is less than kMinBytes or too many bytes.
constexpr absl::Duration kRound = absl::Milliseconds(50);
constexpr double kMinBytes = 1 << 20;
// A round that takes so many times as long as at the floor is ended.
constexpr int kPatience = 4;

size_t BytesOfRound(double floor) {
  return static_cast<size_t>(std::clamp(
      floor * absl::ToDoubleSeconds(kRound), kMinBytes, static_cast<double>(kMaxProbeBytes)));
}

}  // namespace

std::string GigabitsPerSecond(double bytes_per_second) {
  return absl::StrFormat("%.3g Gbit/s", bytes_per_second * 8e-9);
}

Preflight::Preflight(OutboundPeer& peer, double floor)
    : peer_(peer), floor_(floor), source_(BytesOfRound(floor)) {}

std::optional<absl::Status> Preflight::Advance(absl::Time now) {
  if (rounds_ == 0) {
    StartRound(now);
  }
  if (!ended_.has_value()) {
    return std::nullopt;
  }
  absl::Status status = *std::exchange(ended_, {});
  if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
    return status;
  }
  if (status.ok()) {
    const double seconds = absl::ToDoubleSeconds(now - started_);
    fastest_ = std::max(fastest_, static_cast<double>(source_.size()) / seconds);
  }
  if (fastest_ >= floor_) {
    return absl::OkStatus();
  }
  if (rounds_ < kRounds) {
    StartRound(now);
    return std::nullopt;
  }
  const double most = std::max(fastest_, floor_ / kPatience);
  return absl::FailedPreconditionError(
      absl::StrCat("the connection carries ",
                   fastest_ > 0 ? "" : "less than ",
                   GigabitsPerSecond(most),
                   " and --kv_bandwidth_floor is ",
                   GigabitsPerSecond(floor_),
                   ": check the link between the two machines and what UCX selected, or lower the "
                   "flag"));
}

void Preflight::StartRound(absl::Time now) {
  ++rounds_;
  started_ = now;
  const absl::Duration at_floor = absl::Seconds(static_cast<double>(source_.size()) / floor_);
  peer_.Probe(source_, now + kPatience * at_floor, [this](const Completion& completion) {
    ended_ = completion.status;
  });
}

}  // namespace baton::transport::ucx
