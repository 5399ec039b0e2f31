#include "services/loadtest/stream/driver.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/arrivals/arrival_schedule.h"
#include "services/loadtest/stream/request_mix.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/stream/stream_call.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

Driver::Driver(const DriverOptions& options,
               const Stubs* stubs,
               const RequestMix* mix,
               Workload* workload,
               ArrivalSchedule* schedule,
               const CallContext& context)
    : options_(options),
      stubs_(*stubs),
      mix_(*mix),
      workload_(*workload),
      schedule_(schedule),
      context_(context),
      slots_(static_cast<size_t>(options.concurrency), absl::ZeroDuration()) {}

std::vector<RequestRecord> Driver::Run() {
  while (std::optional<Job> job = NextJob()) {
    Launch(*std::move(job));
  }
  const bool whole = !stopped();
  Drain();
  absl::MutexLock lock(&mutex_);
  if (whole) {
    CollectUnsent();
  }
  return std::move(records_);
}

void Driver::Stop() {
  absl::MutexLock lock(&mutex_);
  cancel_ = stopped_;
  stopped_ = true;
  changed_.SignalAll();
}

void Driver::FetchFresh() {
  if (fresh_.has_value() || exhausted_) {
    return;
  }
  const std::optional<absl::Duration> due =
      closed_loop() ? absl::ZeroDuration() : schedule_->Next();
  std::shared_ptr<Conversation> conversation = due.has_value() ? workload_.Next() : nullptr;
  std::optional<inference::v1::GenerateRequest> request =
      conversation != nullptr ? conversation->NextTurn(nullptr) : std::nullopt;
  if (!request.has_value()) {
    exhausted_ = true;
    return;
  }
  const int64_t number = conversations_++;
  std::string id = conversation->id();
  fresh_ = Job{.due = *due,
               .allowed = {},
               .conversation = std::move(conversation),
               .request = *std::move(request),
               .conversation_id = id.empty() ? absl::StrCat(number) : std::move(id),
               .conversation_number = number};
}

bool Driver::UsesSlot(const Job& job) const {
  return options_.concurrency != 0 && (!closed_loop() || job.turn == 0);
}

absl::Duration Driver::ReadyAt(const Job& job) const {
  if (!UsesSlot(job)) {
    return job.due;
  }
  return slots_.empty() ? absl::InfiniteDuration() : std::max(job.due, slots_.front());
}

const Driver::Job* Driver::First() const {
  const Job* fresh = fresh_.has_value() ? &*fresh_ : nullptr;
  const Job* turn = next_turns_.empty() ? nullptr : &next_turns_.begin()->second;
  if (fresh == nullptr || turn == nullptr) {
    return fresh == nullptr ? turn : fresh;
  }
  const auto order = [this](const Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::pair(ReadyAt(*job), job->due);
  };
  return order(turn) <= order(fresh) ? turn : fresh;
}

Driver::Job Driver::Take(const Job* job) {
  const absl::Duration ready = ReadyAt(*job);
  if (UsesSlot(*job)) {
    slots_.pop_front();
  }
  Job taken;
  if (fresh_.has_value() && job == &*fresh_) {
    taken = *std::move(fresh_);
    fresh_.reset();
  } else {
    taken = std::move(next_turns_.begin()->second);
    next_turns_.erase(next_turns_.begin());
  }
  taken.allowed = ready;
  if (closed_loop()) {
    taken.due = ready;
  }
  return taken;
}

std::optional<Driver::Job> Driver::NextJob() {
  FetchFresh();
  absl::MutexLock lock(&mutex_);
  while (!stopped_ && (options_.max_requests == 0 || sent_ < options_.max_requests)) {
    const absl::Duration now = context_.clock->Elapsed();
    const Job* first = First();
    if (now >= options_.duration || (first == nullptr && open_.empty())) {
      return std::nullopt;
    }
    const absl::Duration ready = first == nullptr ? absl::InfiniteDuration() : ReadyAt(*first);
    if (ready <= now) {
      return Take(first);
    }
    if (ready >= options_.duration && open_.empty()) {
      return std::nullopt;
    }
    changed_.WaitWithTimeout(&mutex_, std::min(ready, options_.duration) - now);
  }
  return std::nullopt;
}

RequestRecord Driver::MakeRecord(const Job& job, const RequestTraits& traits) const {
  RequestRecord record;
  record.index = sent_;
  record.request_id = absl::StrCat(options_.run_id, "-", sent_);
  record.conversation = job.conversation_id;
  record.turn = job.turn;
  record.scheduled = job.due;
  record.allowed = job.allowed;
  record.kv_policy = traits.kv_policy;
  record.max_tokens = job.request.stopping().max_tokens();
  record.ignore_eos = job.request.stopping().ignore_eos();
  record.deadline = traits.deadline;
  record.fault = traits.fault;
  return record;
}

inference::v1::GenerateRequest Driver::MakeRequest(Job& job,
                                                   const RequestTraits& traits,
                                                   const RequestRecord& record) const {
  inference::v1::GenerateRequest request = std::move(job.request);
  request.set_request_id(record.request_id);
  request.set_model(options_.model);
  request.set_kv_policy(traits.kv_policy);
  if (options_.sessions) {
    request.set_session_id(absl::StrCat(options_.run_id, "-c", job.conversation_number));
  }
  return request;
}

void Driver::Launch(Job job) {
  const RequestTraits traits = mix_.Draw(sent_);
  RequestRecord record = MakeRecord(job, traits);
  inference::v1::GenerateRequest request = MakeRequest(job, traits, record);
  const bool keep_answer = job.conversation->wants_answer();
  auto shared_job = std::make_shared<Job>(std::move(job));
  auto call = std::make_shared<StreamCall>(
      context_,
      std::move(request),
      std::move(record),
      traits.faults,
      keep_answer,
      [this, shared_job](StreamCall* ended, RequestRecord ended_record, const Answer& answer) {
        Ended(ended, *shared_job, std::move(ended_record), answer);
      });
  {
    absl::MutexLock lock(&mutex_);
    open_.insert(call);
  }
  context_.counters->sent.fetch_add(1, std::memory_order_relaxed);
  call->Start(stubs_[static_cast<size_t>(sent_) % stubs_.size()].get());
  ++sent_;
}

void Driver::CountEnd(const RequestRecord& record) {
  context_.counters->ended.fetch_add(1, std::memory_order_relaxed);
  if (record.ok()) {
    context_.counters->succeeded.fetch_add(1, std::memory_order_relaxed);
  } else if (record.fault != Fault::kCancel) {
    context_.counters->failed.fetch_add(1, std::memory_order_relaxed);
  }
}

void Driver::Ended(StreamCall* call, Job& job, RequestRecord record, const Answer& answer) {
  CountEnd(record);
  std::optional<inference::v1::GenerateRequest> request;
  if (record.ok()) {
    record.correct = job.conversation->Score(answer);
    request = job.conversation->NextTurn(&answer);
  }
  absl::MutexLock lock(&mutex_);
  if (options_.concurrency != 0 && (!closed_loop() || !request.has_value())) {
    slots_.push_back(record.end);
  }
  if (request.has_value()) {
    const absl::Duration due = record.end + options_.think_time;
    job.due = due;
    job.request = *std::move(request);
    ++job.turn;
    next_turns_.emplace(due, std::move(job));
  }
  record.abandoned =
      cancel_ && record.fault == Fault::kNone && record.code == absl::StatusCode::kCancelled;
  records_.push_back(std::move(record));
  open_.erase(call->shared_from_this());
  changed_.SignalAll();
}

void Driver::CollectUnsent() {
  if (closed_loop()) {
    return;
  }
  const auto most =
      static_cast<size_t>(options_.max_requests == 0 ? std::numeric_limits<int64_t>::max()
                                                     : options_.max_requests - sent_);
  // Without a conversation in fresh_ there are no more, or no more arrivals.
  std::optional<absl::Duration> due;
  if (fresh_.has_value()) {
    due = fresh_->due;
  }
  int64_t conversations = workload_.Remaining();
  while (due.has_value() && *due < options_.duration && unsent_.size() < most) {
    unsent_.push_back(*due);
    due = conversations-- > 0 ? schedule_->Next() : std::nullopt;
  }
  for (const auto& turn : next_turns_) {
    if (turn.first < options_.duration) {
      unsent_.push_back(turn.first);
    }
  }
  std::ranges::sort(unsent_);
  unsent_.resize(std::min(unsent_.size(), most));
}

void Driver::Drain() {
  std::vector<std::shared_ptr<StreamCall>> open;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration end = context_.clock->Elapsed() + options_.drain;
    while (!open_.empty() && !cancel_ && context_.clock->Elapsed() < end) {
      changed_.WaitWithTimeout(&mutex_, end - context_.clock->Elapsed());
    }
    cancel_ = true;
    open.assign(open_.begin(), open_.end());
  }
  // Not with the lock held: gRPC may run callbacks on this thread.
  for (const std::shared_ptr<StreamCall>& call : open) {
    call->Cancel();
  }
  absl::MutexLock lock(&mutex_);
  while (!open_.empty()) {
    changed_.Wait(&mutex_);
  }
}

}  // namespace baton::loadtest
