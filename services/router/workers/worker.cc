#include "services/router/workers/worker.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/scheduling/pair_choice.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/load_watch.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {
namespace {

// Reconnection: quick at first, because a restarted worker should serve within 2 s (T20).
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(1);

}  // namespace

Worker::Worker(uint64_t id,
               WorkerKind kind,
               std::string address,
               std::shared_ptr<grpc::Channel> channel,
               std::shared_ptr<TimerQueue> timers,
               std::shared_ptr<WorkerCalls> calls,
               Events events)
    : id_(id),
      kind_(kind),
      address_(std::move(address)),
      channel_(std::move(channel)),
      prefill_stub_(worker::v1::Prefill::NewStub(channel_)),
      decode_stub_(worker::v1::Decode::NewStub(channel_)),
      control_stub_(worker::v1::Control::NewStub(channel_)),
      timers_(std::move(timers)),
      calls_(std::move(calls)),
      events_(std::move(events)),
      backoff_(kMinBackoff) {}

void Worker::Start() { Connect(); }

void Worker::Stop() {
  std::function<void()> cancel;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    watching_ = false;
    cancel = std::exchange(cancel_watch_, nullptr);
  }
  if (cancel) {
    cancel();
  }
}

void Worker::Connect() {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) {
      return;
    }
  }
  std::function<void()> cancel = StartLoadWatch(shared_from_this());
  bool stopped = false;
  {
    absl::MutexLock lock(&mutex_);
    stopped = stopped_;
    if (!stopped) {
      cancel_watch_ = cancel;
    }
  }
  if (stopped) {
    cancel();
  }
}

bool Worker::RoleFits(const worker::v1::ServerInfo& info) const {
  if (kind_ == WorkerKind::kPrefill) {
    return info.role() == worker::v1::ROLE_PREFILL;
  }
  return info.role() == worker::v1::ROLE_DECODE || info.role() == worker::v1::ROLE_BOTH;
}

void Worker::OnInfo(const worker::v1::ServerInfo& info) {
  bool starts = false;
  {
    absl::MutexLock lock(&mutex_);
    starts = !info_.has_value() || info_->incarnation() != info.incarnation();
    if (starts) {
      spdlog::info("worker connected address={} role={} incarnation={:x} pool_tokens={}",
                   address_,
                   worker::v1::Role_Name(info.role()),
                   info.incarnation(),
                   info.kv_pool_tokens());
      if (!RoleFits(info)) {
        spdlog::warn("worker address={} has role {} and is not used: it is listed for another role",
                     address_,
                     worker::v1::Role_Name(info.role()));
      }
    }
    info_ = info;
    starts = starts && !stopped_ && RoleFits(info);
  }
  if (starts) {
    events_.on_start(shared_from_this());
  }
}

void Worker::OnLoads(const worker::v1::Loads& loads) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) {
      return;
    }
    loads_ = loads;
    reported_ = absl::Now();
    watching_ = true;
    suspect_ = false;
    full_ = false;
    recent_requests_ = 0;
    recent_tokens_ = 0;
    backoff_ = kMinBackoff;
  }
  events_.on_change();
}

void Worker::OnWatchEnd(const absl::Status& status) {
  absl::Duration delay;
  {
    absl::MutexLock lock(&mutex_);
    if (watching_) {
      spdlog::warn("worker lost address={}: {}", address_, std::string(status.message()));
    }
    watching_ = false;
    cancel_watch_ = nullptr;
    if (stopped_) {
      return;
    }
    delay = backoff_;
    backoff_ = std::min(2 * backoff_, kMaxBackoff);
  }
  events_.on_change();
  timers_->After(delay, [weak = weak_from_this()] {
    if (const auto worker = weak.lock()) {
      worker->Connect();
    }
  });
}

std::optional<worker::v1::ServerInfo> Worker::info() const {
  absl::MutexLock lock(&mutex_);
  return info_;
}

bool Worker::has_role() const {
  absl::MutexLock lock(&mutex_);
  return info_.has_value() && RoleFits(*info_);
}

WorkerState Worker::state() const {
  absl::MutexLock lock(&mutex_);
  return State();
}

WorkerState Worker::State() const {
  if (stopped_ || !watching_ || !info_.has_value()) {
    return WorkerState::kConnecting;
  }
  if (!RoleFits(*info_)) {
    return WorkerState::kWrongRole;
  }
  if (loads_.draining()) {
    return WorkerState::kDraining;
  }
  if (!loads_.ready()) {
    return WorkerState::kNotReady;
  }
  if (absl::Now() - reported_ >= kMaxReportAge) {
    return WorkerState::kSilent;
  }
  return suspect_ ? WorkerState::kSuspect : WorkerState::kReady;
}

WorkerView Worker::view() const {
  absl::MutexLock lock(&mutex_);
  return {.kind = kind_,
          .address = address_,
          .state = State(),
          .full = full_,
          .info = info_,
          .loads = loads_,
          .report_age = absl::Now() - reported_};
}

scheduling::Place Worker::PlaceOf() const {
  return info_.has_value() ? scheduling::Place{.host = info_->host(), .rack = info_->rack()}
                           : scheduling::Place{};
}

int64_t Worker::PoolTokens() const {
  return info_.has_value() ? static_cast<int64_t>(info_->kv_pool_tokens()) : 0;
}

scheduling::PrefillLoad Worker::prefill_load() const {
  absl::MutexLock lock(&mutex_);
  return {.worker = id_,
          .ready = Ready(),
          .free_slots = full_ ? 0 : static_cast<int64_t>(loads_.free_slots()),
          .waiting_tokens = static_cast<int64_t>(loads_.waiting_tokens()),
          .unreported_requests = unacknowledged_requests_ + recent_requests_,
          .unreported_tokens = unacknowledged_tokens_ + recent_tokens_,
          .pool_tokens = PoolTokens(),
          .place = PlaceOf()};
}

scheduling::DecodeLoad Worker::decode_load() const {
  absl::MutexLock lock(&mutex_);
  return {.worker = id_,
          .ready = Ready(),
          .can_prefill = info_.has_value() && info_->role() == worker::v1::ROLE_BOTH,
          .pool_tokens = PoolTokens(),
          .pages_total = static_cast<int64_t>(loads_.pages_total()),
          .pages_free = static_cast<int64_t>(loads_.pages_free()),
          .running_sequences = static_cast<int64_t>(loads_.running_sequences()),
          .reservations = static_cast<int64_t>(loads_.reservations()),
          .unreported_requests = unacknowledged_requests_ + recent_requests_,
          .unreported_tokens = unacknowledged_tokens_ + recent_tokens_,
          .full = full_ || unacknowledged_requests_ >= window_,
          .place = PlaceOf()};
}

void Worker::Suspect() {
  {
    absl::MutexLock lock(&mutex_);
    suspect_ = true;
  }
  events_.on_change();
}

void Worker::MarkFull() {
  absl::MutexLock lock(&mutex_);
  full_ = true;
  window_ = 1;
}

void Worker::AddUnreported(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  ++unacknowledged_requests_;
  unacknowledged_tokens_ += tokens;
}

bool Worker::Acknowledge(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  const bool closed = unacknowledged_requests_ >= window_;
  ++window_;
  --unacknowledged_requests_;
  unacknowledged_tokens_ -= tokens;
  ++recent_requests_;
  recent_tokens_ += tokens;
  return closed;
}

void Worker::RemoveUnreported(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  --unacknowledged_requests_;
  unacknowledged_tokens_ -= tokens;
}

WorkerTicket::WorkerTicket(std::shared_ptr<Worker> worker, int64_t tokens)
    : worker_(std::move(worker)), tokens_(tokens) {
  worker_->AddUnreported(tokens_);
}

WorkerTicket::~WorkerTicket() {
  if (worker_ != nullptr && !acknowledged_) {
    worker_->RemoveUnreported(tokens_);
  }
}

WorkerTicket::WorkerTicket(WorkerTicket&& other) noexcept
    : worker_(std::move(other.worker_)),
      tokens_(other.tokens_),
      acknowledged_(other.acknowledged_) {
  other.worker_ = nullptr;
}

WorkerTicket& WorkerTicket::operator=(WorkerTicket&& other) noexcept {
  std::swap(worker_, other.worker_);
  std::swap(tokens_, other.tokens_);
  std::swap(acknowledged_, other.acknowledged_);
  return *this;
}

bool WorkerTicket::Acknowledge() {
  if (worker_ == nullptr || std::exchange(acknowledged_, true)) {
    return false;
  }
  return worker_->Acknowledge(tokens_);
}

}  // namespace baton::router
