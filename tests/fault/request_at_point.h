// A request that is brought to a chosen point of its life and kept there.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {

enum class Point {
  kQueue,     // in the router's queue: prefill has no free slot
  kReserved,  // decode has reserved, prefill has not begun
  kPrefill,   // some chunks of the prompt are computed and shipped
  kTransfer,  // the client has the first token, decode has not taken the whole hand-off
  kDecode,    // decode has delivered tokens
};
inline constexpr std::array kPoints = {
    Point::kQueue, Point::kReserved, Point::kPrefill, Point::kTransfer, Point::kDecode};
std::string_view PointName(Point point);

// Holds the request by stopping (SIGSTOP) the worker that would carry it on. The stack needs one
// prefill worker with --max_running_sequences=1 and short chunks, and one decode worker; it must
// outlive this. At kTransfer prefill may have sent everything, its commit too, unless
// --kv_segment_kib makes four segments a small part of the prompt's KV. Not thread-safe.
class RequestAtPoint {
 public:
  static constexpr int kMaxTokens = 300;
  static constexpr absl::Duration kTimeout = absl::Seconds(60);

  RequestAtPoint(LocalStack* stack, Point point);
  ~RequestAtPoint();

  // Starts the request and returns when it is held at the point; with an error if it has ended, as
  // by its timeout, before it got there.
  absl::Status Reach(absl::Duration timeout = kTimeout);
  void Cancel();
  // Lets the held worker go on; does nothing when it was killed.
  void LetGo();
  // Waits for the request's end.
  const StreamResult& Result();

 private:
  void Start(absl::Duration timeout);
  absl::Status Await(const std::function<bool()>& reached) const;
  absl::Status ReachQueue();
  // So much after the prompt's first step.
  absl::Status ReachPrefill(absl::Duration timeout, absl::Duration goes_on);
  // Stops `worker` once `reached`.
  absl::Status HoldWhen(Service& worker, const std::function<bool()>& reached);

  LocalStack* const stack_;
  const Point point_;
  Service* held_ = nullptr;
  std::unique_ptr<RequestAtPoint> ahead_;  // holds prefill's only slot
  absl::Notification cancel_;
  std::atomic<size_t> tokens_ = 0;
  std::atomic<bool> ended_ = false;
  StreamResult result_;
  std::thread client_;
};

}  // namespace baton::testing
