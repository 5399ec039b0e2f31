// What the reactors of both ends of a Link stream have in common.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/transport/nccl/pipe.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {

// `Reactor` is one of gRPC's for a stream of LinkMessage both ways. One write at a time; the end of
// the stream waits for it. gRPC's operations are started without the lock: their reactions may run
// inside the call. Owns itself from Hold to Release.
template <typename Reactor>
class PipeReactor : public Reactor,
                    public Pipe,
                    public std::enable_shared_from_this<PipeReactor<Reactor>> {
 public:
  static constexpr size_t kMaxUnsent = 8192;

  explicit PipeReactor(OnMessage on_message) : on_message_(std::move(on_message)) {}

  void Read() override {
    {
      const absl::MutexLock lock(&mutex_);
      if (closed_) {
        return;
      }
    }
    this->StartRead(&read_);
  }

  void Send(worker::v1::LinkMessage message) override {
    {
      const absl::MutexLock lock(&mutex_);
      if (closed_) {
        return;
      }
      unsent_.push_back(std::move(message));
      if (writing_) {
        if (unsent_.size() > kMaxUnsent) {
          Break();
        }
        return;
      }
      TakeNext();
    }
    this->StartWrite(&written_);
  }

  void Close() override {
    {
      const absl::MutexLock lock(&mutex_);
      if (std::exchange(closed_, true)) {
        return;
      }
      unsent_.clear();
      if (writing_) {
        Break();
        return;
      }
    }
    End();
  }

  void OnReadDone(bool ok) override {
    on_message_(ok ? std::optional(std::move(read_)) : std::nullopt);
  }

  void OnWriteDone(bool ok) override {
    bool ends = false;
    {
      const absl::MutexLock lock(&mutex_);
      writing_ = false;
      ends = closed_;
      if (!ends && (!ok || unsent_.empty())) {
        return;
      }
      if (!ends) {
        TakeNext();
      }
    }
    if (ends) {
      End();
    } else {
      this->StartWrite(&written_);
    }
  }

 protected:
  void Hold() { self_ = this->shared_from_this(); }
  void Release() { const std::shared_ptr<PipeReactor> self = std::move(self_); }
  // Makes a write in progress fail.
  virtual void Break() = 0;
  // Ends the stream, in which no write is in progress.
  virtual void End() = 0;

 private:
  void TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    written_ = std::move(unsent_.front());
    unsent_.pop_front();
    writing_ = true;
  }

  const OnMessage on_message_;
  std::shared_ptr<PipeReactor> self_;
  worker::v1::LinkMessage read_;
  worker::v1::LinkMessage written_;

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<worker::v1::LinkMessage> unsent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport::nccl
