// A KV sink under a test's control.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

#include "common/base/pieces.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "kernels/core/landing_memory.h"

namespace baton::engine {

// What a sink saw; outlives it. Thread-safe.
class SinkLog {
 public:
  struct Page {
    std::span<const std::byte> memory;
    std::vector<std::byte> copy;
    kernels::LandingMemory* device = nullptr;
  };

  // What the page holds now.
  static std::vector<std::byte> Read(std::span<const std::byte> memory,
                                     kernels::LandingMemory* device) {
    std::vector<std::byte> bytes(memory.size());
    kernels::LandingMemory& of = device != nullptr ? *device : kernels::HostLanding();
    EXPECT_TRUE(of.Read(bytes, memory.data()).ok());
    return bytes;
  }

  // Answers Commit and Abort at once (default), or keeps the callback until Answer.
  explicit SinkLog(bool answers_at_once = true) : answers_at_once_(answers_at_once) {}

  void Add(const ReadyKv& ready) {
    absl::MutexLock lock(&mutex_);
    errors_ += committed_.has_value() || aborted_ ? 1 : 0;
    const auto count = static_cast<size_t>(ready.layer_end - ready.layer_begin) *
                       static_cast<size_t>(ready.page_count);
    PieceReader<const std::byte> reader(ready.memory);
    for (int32_t layer = ready.layer_begin; layer < ready.layer_end; ++layer) {
      for (int32_t page = 0; page < ready.page_count; ++page) {
        const auto memory = reader.Next(BytesOf(ready.memory) / count);
        const bool added = pages_
                               .emplace(std::pair(layer, ready.page_begin + page),
                                        Page{.memory = memory,
                                             .copy = Read(memory, ready.device),
                                             .device = ready.device})
                               .second;
        errors_ += added ? 0 : 1;
      }
    }
    calls_.push_back({ready.layer_begin, ready.layer_end, ready.page_begin, ready.page_count, {}});
  }
  void Commit(CommitInfo info, std::function<void(absl::Status, int64_t)> done) {
    {
      absl::MutexLock lock(&mutex_);
      errors_ += committed_.has_value() || aborted_ ? 1 : 0;
      committed_ = std::move(info);
      done_ = std::move(done);
    }
    if (answers_at_once_) {
      Answer(absl::OkStatus(), 1234);
    }
  }
  void Abort(absl::Status reason, std::function<void()> released) {
    {
      absl::MutexLock lock(&mutex_);
      errors_ += committed_.has_value() || aborted_ ? 1 : 0;
      aborted_ = true;
      abort_reason_ = std::move(reason);
      done_ = [released = std::move(released)](const absl::Status&, int64_t) { released(); };
    }
    if (answers_at_once_) {
      Answer(absl::OkStatus(), 0);
    }
  }
  // Calls the callback of Commit or Abort, after checking that every page given still holds what it
  // held then. Nothing happens when neither was called or it has been answered.
  void Answer(absl::Status status, int64_t wire_bytes) {
    std::function<void(absl::Status, int64_t)> done;
    {
      absl::MutexLock lock(&mutex_);
      if (!done_) {
        return;
      }
      for (const auto& [key, page] : pages_) {
        errors_ += Read(page.memory, page.device) == page.copy ? 0 : 1;
      }
      done = std::exchange(done_, nullptr);
    }
    done(std::move(status), wire_bytes);
  }
  bool AwaitEnd() const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &SinkLog::Ended), absl::Seconds(30));
  }
  bool aborted() const {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }
  absl::Status abort_reason() const {
    absl::MutexLock lock(&mutex_);
    return abort_reason_;
  }
  std::optional<CommitInfo> committed() const {
    absl::MutexLock lock(&mutex_);
    return committed_;
  }
  std::map<std::pair<int32_t, int32_t>, Page> pages() const {
    absl::MutexLock lock(&mutex_);
    return pages_;
  }
  std::vector<ReadyKv> calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  // Contract violations seen: pages given twice or after the end, a second end, changed bytes.
  int errors() const {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }

 private:
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return committed_.has_value() || aborted_;
  }

  const bool answers_at_once_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, Page> pages_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadyKv> calls_ ABSL_GUARDED_BY(mutex_);
  std::optional<CommitInfo> committed_ ABSL_GUARDED_BY(mutex_);
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status abort_reason_ ABSL_GUARDED_BY(mutex_);
  std::function<void(absl::Status, int64_t)> done_ ABSL_GUARDED_BY(mutex_);
  int errors_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FakeSink final : public KvSink {
 public:
  explicit FakeSink(std::shared_ptr<SinkLog> log, bool reads_devices = false)
      : log_(std::move(log)), reads_devices_(reads_devices) {}
  bool reads_devices() override { return reads_devices_; }
  void LayersReady(ReadyKv ready) override { log_->Add(ready); }
  void Commit(CommitInfo info, std::function<void(absl::Status, int64_t)> done) override {
    log_->Commit(std::move(info), std::move(done));
  }
  void Abort(absl::Status reason, std::function<void()> released) override {
    log_->Abort(std::move(reason), std::move(released));
  }

 private:
  std::shared_ptr<SinkLog> log_;
  const bool reads_devices_;
};

}  // namespace baton::engine
