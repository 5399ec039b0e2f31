// An engine over the fake model, with everything it borrows.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/base/fake_clock.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference_ops.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/await_status.h"
#include "tests/unit/engine/eventually.h"  // IWYU pragma: export
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {

inline constexpr int32_t kPageTokens = 4;

// Small pages and budgets; `pages` is the size of the pool.
inline EngineOptions TestOptions(Role role, int64_t pages = 3000) {
  EngineOptions options;
  options.role = role;
  options.page_tokens = kPageTokens;
  options.page_dtype = kernels::DType::kF32;
  options.kv_pool_bytes = pages * kPageTokens * FakeModel::kHeads * FakeModel::kHeadDim * 2 * 4;
  options.step_token_budget = 64;
  options.prefill_chunk_tokens = 16;
  options.max_running_sequences = 32;
  return options;
}

class RecordingReservations final : public ReservationObserver {
 public:
  void OnReservationReleased(uint64_t reservation_id) override {
    if (hook) {
      hook(reservation_id);
    }
    absl::MutexLock lock(&mutex_);
    released_.push_back(reservation_id);
  }
  std::vector<uint64_t> released() const {
    absl::MutexLock lock(&mutex_);
    return released_;
  }
  std::function<void(uint64_t)> hook;  // set before the engine starts

 private:
  mutable absl::Mutex mutex_;
  std::vector<uint64_t> released_ ABSL_GUARDED_BY(mutex_);
};

// Counts turns of conversations.
class CountingObserver final : public EngineObserver {
 public:
  void OnSessionTurn(bool extends_kept) override { ++(extends_kept ? kept : fresh); }
  std::atomic<int> kept = 0;
  std::atomic<int> fresh = 0;
};

struct EngineHarness {
  explicit EngineHarness(EngineOptions options) {
    options.clock = &clock;
    auto created = Engine::Create(std::make_unique<FakeModel>(control),
                                  {.pool = &threads, .workspace = &workspace},
                                  kernels::ReferenceOps(),
                                  options,
                                  &reservations,
                                  &observer);
    EXPECT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  ~EngineHarness() { control->Release(); }

  std::shared_ptr<RecordingListener> Submit(std::string id,
                                            std::vector<int32_t> prompt,
                                            SamplingParams sampling,
                                            std::shared_ptr<SinkLog> sink = nullptr,
                                            absl::Duration deadline = absl::InfiniteDuration()) {
    auto listener = std::make_shared<RecordingListener>();
    const absl::Status status = TrySubmit(
        std::move(id), std::move(prompt), std::move(sampling), listener, std::move(sink), deadline);
    EXPECT_TRUE(status.ok()) << status;
    return listener;
  }
  absl::Status TrySubmit(std::string id,
                         std::vector<int32_t> prompt,
                         SamplingParams sampling,
                         std::shared_ptr<RecordingListener> listener,
                         std::shared_ptr<SinkLog> sink = nullptr,
                         absl::Duration deadline = absl::InfiniteDuration()) {
    GenerateRequest request;
    request.request_id = std::move(id);
    request.prompt = std::move(prompt);
    request.sampling = std::move(sampling);
    request.deadline = clock.Now() + deadline;
    if (sink != nullptr) {
      request.sink = std::make_unique<FakeSink>(std::move(sink));
    }
    return engine->Submit(std::move(request), std::move(listener));
  }
  absl::StatusOr<ReservationGrant> Reserve(std::string id,
                                           int64_t prompt_tokens,
                                           SamplingParams sampling,
                                           const std::shared_ptr<RecordingListener>& listener,
                                           absl::Duration deadline = absl::InfiniteDuration()) {
    ReserveRequest request;
    request.request_id = std::move(id);
    request.prompt_tokens = prompt_tokens;
    request.sampling = std::move(sampling);
    request.deadline = clock.Now() + deadline;
    return AwaitGrant(*engine, std::move(request), listener);
  }
  absl::Status Begin(const ReservationGrant& grant, uint32_t attempt) {
    return AwaitStatus([&](Engine::StatusCallback done) {
      engine->BeginAttempt(grant.reservation_id, grant.epoch, attempt, std::move(done));
    });
  }
  absl::Status Renew(const ReservationGrant& grant) {
    return AwaitStatus([&](Engine::StatusCallback done) {
      engine->RenewLease(grant.reservation_id, grant.epoch, std::move(done));
    });
  }
  absl::Status Commit(const ReservationGrant& grant, uint32_t attempt, CommitInfo info) {
    return AwaitStatus([&](Engine::StatusCallback done) {
      engine->Commit(grant.reservation_id, grant.epoch, attempt, std::move(info), std::move(done));
    });
  }
  // Every page, slot and gauge is back where it was before the first request.
  bool AtBaseline() const {
    const EngineLoad load = engine->load();
    return load.pages_free == load.pages_total && load.pages_reserved == 0 &&
           load.reservations == 0 && load.running_sequences == 0 && load.waiting_requests == 0 &&
           load.waiting_tokens == 0 && !load.has_work;
  }

  std::shared_ptr<FakeModelControl> control = std::make_shared<FakeModelControl>();
  kernels::ThreadPool threads{1};
  kernels::Buffer workspace;
  FakeClock clock;
  RecordingReservations reservations;
  CountingObserver observer;
  std::unique_ptr<Engine> engine;
};

inline SamplingParams GreedyParams(int32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0.0f;
  params.max_tokens = max_tokens;
  return params;
}

inline std::vector<int32_t> MakePrompt(int32_t tokens, int32_t salt = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t i = 0; i < tokens; ++i) {
    prompt[static_cast<size_t>(i)] = (i * 7 + salt * 13 + 5) % FakeModel::kVocab;
  }
  return prompt;
}

}  // namespace baton::engine
