// An engine that only keeps reservations; for tests of the landing side.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/model/model.h"
#include "kernels/kv_format/dense.h"

namespace baton::handoff {

// Answers BeginAttempt, unless told to wait, and Commit inside the call, as rules say: the epoch
// must match, attempts must not go back, one commit per reservation. Thread-safe.
class FakeEngine : public engine::Engine {
 public:
  struct Committed {
    uint64_t reservation_id = 0;
    uint32_t attempt = 0;
    engine::CommitInfo info;
  };

  void Grant(uint64_t reservation_id, uint64_t epoch) {
    absl::MutexLock lock(&mutex_);
    reservations_[reservation_id] = {.epoch = epoch};
  }
  std::vector<Committed> committed() const {
    absl::MutexLock lock(&mutex_);
    return committed_;
  }

  // BeginAttempt is answered by AnswerAttempts, not inside the call.
  void HoldAttempts() {
    absl::MutexLock lock(&mutex_);
    holds_attempts_ = true;
  }
  void AnswerAttempts() {
    std::vector<std::function<void()>> answers;
    {
      absl::MutexLock lock(&mutex_);
      answers.swap(held_attempts_);
    }
    for (const auto& answer : answers) {
      answer();
    }
  }

  // What was told of pages, in order.
  std::vector<engine::LandedPages> pages_landed() const {
    absl::MutexLock lock(&mutex_);
    return pages_landed_;
  }

  // What was told of pages of hidden states, in order.
  std::vector<int32_t> hidden_landed() const {
    absl::MutexLock lock(&mutex_);
    return hidden_landed_;
  }

  void BeginAttempt(uint64_t reservation_id,
                    uint64_t epoch,
                    uint32_t attempt,
                    StatusCallback done) override {
    {
      absl::MutexLock lock(&mutex_);
      if (holds_attempts_) {
        held_attempts_.emplace_back(
            [=, this, done = std::move(done)] { done(Begin(reservation_id, epoch, attempt)); });
        return;
      }
    }
    done(Begin(reservation_id, epoch, attempt));
  }
  void PagesLanded(uint64_t /*reservation_id*/,
                   uint64_t /*epoch*/,
                   uint32_t /*attempt*/,
                   const engine::LandedPages& pages) override {
    absl::MutexLock lock(&mutex_);
    pages_landed_.push_back(pages);
  }
  void HiddenLanded(uint64_t /*reservation_id*/,
                    uint64_t /*epoch*/,
                    uint32_t /*attempt*/,
                    int32_t pages) override {
    absl::MutexLock lock(&mutex_);
    hidden_landed_.push_back(pages);
  }
  void Commit(uint64_t reservation_id,
              uint64_t epoch,
              uint32_t attempt,
              engine::CommitInfo info,
              StatusCallback done) override {
    absl::Status status = Begin(reservation_id, epoch, attempt);
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      reservations_.erase(reservation_id);
      committed_.push_back({reservation_id, attempt, std::move(info)});
    }
    done(status);
  }

  absl::Status Submit(engine::GenerateRequest, std::shared_ptr<engine::RequestListener>) override {
    return absl::UnimplementedError("not faked");
  }
  absl::Status Reserve(engine::ReserveRequest,
                       std::shared_ptr<engine::RequestListener>,
                       ReserveCallback) override {
    return absl::UnimplementedError("not faked");
  }
  void RenewLease(uint64_t, uint64_t, StatusCallback done) override { done(absl::OkStatus()); }
  absl::StatusOr<engine::HandoffShape> DescribeHandoff(std::string_view, int64_t) const override {
    return absl::UnimplementedError("not faked");
  }
  void Cancel(std::string_view, absl::Status) override {}
  void Drain() override {}
  void Shutdown() override {}
  std::vector<std::string> kv_formats() const override { return {"dense"}; }
  engine::EngineLoad load() const override { return {}; }
  const model::Model& model() const override { std::abort(); }
  const engine::EngineOptions& options() const override { return options_; }
  kernels::DensePageLayout page_layout() const override { return {}; }

 private:
  struct Reservation {
    uint64_t epoch = 0;
    uint32_t attempt = 0;
  };

  absl::Status Begin(uint64_t reservation_id, uint64_t epoch, uint32_t attempt) {
    absl::MutexLock lock(&mutex_);
    const auto found = reservations_.find(reservation_id);
    if (found == reservations_.end() || found->second.epoch != epoch ||
        attempt < found->second.attempt) {
      return absl::FailedPreconditionError("STALE_EPOCH: the engine refuses");
    }
    found->second.attempt = attempt;
    return absl::OkStatus();
  }

  const engine::EngineOptions options_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, Reservation> reservations_ ABSL_GUARDED_BY(mutex_);
  std::vector<Committed> committed_ ABSL_GUARDED_BY(mutex_);
  bool holds_attempts_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> held_attempts_ ABSL_GUARDED_BY(mutex_);
  std::vector<engine::LandedPages> pages_landed_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> hidden_landed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::handoff
