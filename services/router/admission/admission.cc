#include "services/router/admission/admission.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/rpc/status_details.h"
#include "common/scheduling/central_queue.h"
#include "common/scheduling/pair_choice.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {
namespace {

// When a client may try again after it met a full queue.
constexpr absl::Duration kQueueFullDelay = absl::Seconds(1);

scheduling::QueueEntry EntryOf(const AdmissionRequest& request) {
  return {.id = request.id, .tokens = request.needs.prompt_tokens, .bytes = request.bytes};
}

}  // namespace

Admission::Admission(const scheduling::QueueLimits& limits, std::shared_ptr<WorkerSet> workers)
    : workers_(std::move(workers)), queue_(limits), unservable_since_(absl::Now()) {}

absl::Status Admission::Enqueue(AdmissionRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = queue_.Add(EntryOf(request));
    if (absl::IsResourceExhausted(status)) {
      return rpc::ResourceExhausted(
          rpc::reason::kQueueFull, std::string(status.message()), kQueueFullDelay);
    }
    if (!status.ok()) {
      return rpc::WithReason(status, rpc::reason::kExceedsCapacity);
    }
    const uint64_t id = request.id;
    queued_.insert_or_assign(id, std::move(request));
  }
  Dispatch();
  return absl::OkStatus();
}

void Admission::Requeue(AdmissionRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = queue_.Return(EntryOf(request));
    if (status.ok()) {
      const uint64_t id = request.id;
      queued_.insert_or_assign(id, std::move(request));
    }
  }
  Dispatch();
}

void Admission::WaitForPrefill(AdmissionRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    retries_.push_back(std::move(request));
  }
  Dispatch();
}

void Admission::Leave(uint64_t id) {
  {
    absl::MutexLock lock(&mutex_);
    queue_.Remove(id);
    queued_.erase(id);
    std::erase_if(retries_, [id](const AdmissionRequest& request) { return request.id == id; });
  }
  Dispatch();  // the next one may fit where this one did not
}

std::vector<scheduling::PrefillLoad> Admission::PrefillLoads() const {
  std::vector<scheduling::PrefillLoad> loads;
  for (const auto& worker : workers_->List(WorkerKind::kPrefill)) {
    loads.push_back(worker->prefill_load());
  }
  return loads;
}

std::vector<scheduling::DecodeLoad> Admission::DecodeLoads() const {
  std::vector<scheduling::DecodeLoad> loads;
  for (const auto& worker : workers_->List(WorkerKind::kDecode)) {
    loads.push_back(worker->decode_load());
  }
  return loads;
}

std::shared_ptr<Worker> Admission::Find(WorkerKind kind, uint64_t id) const {
  for (auto& worker : workers_->List(kind)) {
    if (worker->id() == id) {
      return worker;
    }
  }
  return nullptr;
}

Admission::Grant Admission::PlaceRetry(const std::vector<scheduling::PrefillLoad>& prefills) {
  for (auto waiting = retries_.begin(); waiting != retries_.end(); ++waiting) {
    const std::optional<uint64_t> choice = scheduling::ChoosePrefill(prefills, waiting->needs);
    const auto worker = choice.has_value() ? Find(WorkerKind::kPrefill, *choice) : nullptr;
    if (worker == nullptr) {
      continue;
    }
    auto ticket = std::make_shared<WorkerTicket>(worker, waiting->needs.prompt_tokens);
    Grant grant = [client = std::move(waiting->client), ticket] {
      if (const auto alive = client.lock()) {
        alive->OnPrefillWorker(std::move(*ticket));
      }
    };
    retries_.erase(waiting);
    return grant;
  }
  return nullptr;
}

Admission::Grant Admission::PlaceQueued(const std::vector<scheduling::PrefillLoad>& prefills) {
  const std::vector<scheduling::DecodeLoad> decodes = DecodeLoads();
  if (!scheduling::CanServe(prefills, decodes)) {
    return nullptr;
  }
  for (auto entry = queue_.Next(0); entry.has_value(); entry = queue_.Next(entry->id)) {
    const scheduling::PairNeeds& needs = queued_.at(entry->id).needs;
    if (!scheduling::CanServe(prefills, decodes, needs)) {
      continue;
    }
    const std::optional<scheduling::WorkerPair> choice =
        scheduling::ChoosePair(prefills, decodes, needs);
    return choice.has_value() ? GrantPair(entry->id, *choice) : nullptr;
  }
  return nullptr;
}

Admission::Grant Admission::GrantPair(uint64_t id, const scheduling::WorkerPair& choice) {
  const AdmissionRequest& waiting = queued_.at(id);
  const auto decode = Find(WorkerKind::kDecode, choice.decode);
  const auto prefill =
      choice.prefill.has_value() ? Find(WorkerKind::kPrefill, *choice.prefill) : nullptr;
  if (decode == nullptr || (choice.prefill.has_value() && prefill == nullptr)) {
    return nullptr;
  }
  auto pair = std::make_shared<AssignedPair>();
  pair->decode = WorkerTicket(decode, waiting.needs.total_tokens);
  if (prefill != nullptr) {
    pair->prefill = WorkerTicket(prefill, waiting.needs.prompt_tokens);
  }
  Grant grant = [client = waiting.client, pair] {
    if (const auto alive = client.lock()) {
      alive->OnPair(std::move(*pair));
    }
  };
  queue_.Remove(id);
  queued_.erase(id);
  return grant;
}

Admission::Grant Admission::PlaceNext() {
  if (retries_.empty() && queue_.empty()) {
    return nullptr;
  }
  const std::vector<scheduling::PrefillLoad> prefills = PrefillLoads();
  if (Grant grant = PlaceRetry(prefills)) {
    return grant;
  }
  return PlaceQueued(prefills);
}

void Admission::Dispatch() {
  std::vector<Grant> grants;
  const bool can_serve = CanServe();
  {
    absl::MutexLock lock(&mutex_);
    if (can_serve) {
      unservable_since_ = absl::InfiniteFuture();
    } else if (unservable_since_ == absl::InfiniteFuture()) {
      unservable_since_ = absl::Now();
    }
    while (Grant grant = PlaceNext()) {
      grants.push_back(std::move(grant));
    }
  }
  for (const Grant& grant : grants) {
    grant();
  }
  absl::MutexLock lock(&callback_mutex_);
  if (on_dispatched_) {
    on_dispatched_();
  }
}

bool Admission::CanServe(const scheduling::PairNeeds& needs) const {
  return scheduling::CanServe(PrefillLoads(), DecodeLoads(), needs);
}

bool Admission::CanPrefill(const scheduling::PairNeeds& needs) const {
  return scheduling::CanPrefill(PrefillLoads(), needs);
}

absl::Time Admission::unservable_since() const {
  absl::MutexLock lock(&mutex_);
  return unservable_since_;
}

scheduling::QueueTotals Admission::queued() const {
  absl::MutexLock lock(&mutex_);
  return queue_.totals();
}

}  // namespace baton::router
