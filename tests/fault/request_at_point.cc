#include "tests/fault/request_at_point.h"

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "tests/support/inference_client.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

constexpr int kPromptTokens = 2000;
constexpr absl::Duration kPatience = absl::Seconds(20);
// Longer than the router's period of load reports, so that it knows of a free slot.
constexpr absl::Duration kReports = absl::Milliseconds(300);

// A gauge or counter of a running service; -1 when it can't be read.
double Metric(const Service& service, const std::string& name) {
  const auto samples = ScrapeMetrics(service.metrics_port);
  return samples.ok() ? Sample(*samples, name) : -1;
}

}  // namespace

std::string_view PointName(Point point) {
  switch (point) {
    case Point::kQueue:
      return "queue";
    case Point::kReserved:
      return "reserved";
    case Point::kPrefill:
      return "prefill";
    case Point::kTransfer:
      return "transfer";
    case Point::kDecode:
      return "decode";
  }
  return "";
}

RequestAtPoint::RequestAtPoint(LocalStack* stack, Point point) : stack_(stack), point_(point) {}

RequestAtPoint::~RequestAtPoint() {
  LetGo();
  if (client_.joinable()) {
    Cancel();
    client_.join();
  }
}

absl::Status RequestAtPoint::Reach(absl::Duration timeout) {
  Service& prefill = stack_->prefill();
  Service& decode = stack_->decode();
  const auto reserved = [&] { return Metric(decode, "baton_kv_leases_active") == 1; };
  switch (point_) {
    case Point::kQueue:
      BATON_RETURN_IF_ERROR(ReachQueue());
      Start(timeout);
      return Await([&] { return Metric(stack_->router(), "baton_requests_waiting") == 1; });
    case Point::kReserved:
      absl::SleepFor(kReports);
      BATON_RETURN_IF_ERROR(HoldWhen(prefill, [] { return true; }));
      Start(timeout);
      return Await(reserved);
    case Point::kPrefill:
      return ReachPrefill(timeout, absl::ZeroDuration());
    case Point::kTransfer:
      Start(timeout);
      BATON_RETURN_IF_ERROR(HoldWhen(decode, reserved));
      return Await([&] { return tokens_ > 0; });
    case Point::kDecode:
      Start(timeout);
      return HoldWhen(decode, [&] { return tokens_ >= 5; });
  }
  return absl::OkStatus();
}

absl::Status RequestAtPoint::Await(const std::function<bool()>& reached) const {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!reached()) {
    if (ended_ || absl::Now() > deadline) {
      return absl::DeadlineExceededError("the request did not come to its point");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

// The router has to know that the only slot is taken, which takes a report.
absl::Status RequestAtPoint::ReachQueue() {
  ahead_ = std::make_unique<RequestAtPoint>(stack_, Point::kPrefill);
  return ahead_->ReachPrefill(kTimeout, kReports);
}

absl::Status RequestAtPoint::ReachPrefill(absl::Duration timeout, absl::Duration goes_on) {
  Service& prefill = stack_->prefill();
  const auto steps = [&] { return Metric(prefill, "baton_step_duration_seconds_count"); };
  const double before = steps();
  Start(timeout);
  BATON_RETURN_IF_ERROR(Await([&] { return steps() > before; }));
  absl::SleepFor(goes_on);
  return HoldWhen(prefill, [] { return true; });
}

absl::Status RequestAtPoint::HoldWhen(Service& worker, const std::function<bool()>& reached) {
  BATON_RETURN_IF_ERROR(Await(reached));
  held_ = &worker;
  worker.process->Signal(SIGSTOP);
  return absl::OkStatus();
}

void RequestAtPoint::Cancel() {
  if (!cancel_.HasBeenNotified()) {
    cancel_.Notify();
  }
}

void RequestAtPoint::LetGo() {
  ahead_.reset();
  if (held_ != nullptr) {
    held_->process->Signal(SIGCONT);
    held_ = nullptr;
  }
}

const StreamResult& RequestAtPoint::Result() {
  if (client_.joinable()) {
    client_.join();
  }
  return result_;
}

void RequestAtPoint::Start(absl::Duration timeout) {
  client_ = std::thread([this, timeout] {
    const StreamOptions options = {.timeout = timeout,
                                   .keep_going =
                                       [this](const StreamResult& so_far) {
                                         tokens_ = so_far.token_ids.size();
                                         return true;
                                       },
                                   .cancel = &cancel_};
    result_ = InferenceClient(stack_->router_address())
                  .Run(TokenRequest(kPromptTokens, kMaxTokens), options);
    ended_ = true;
  });
}

}  // namespace baton::testing
