// Writes a server stream from any thread without ever blocking it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/status.h"

#include "common/rpc/status_details.h"

namespace baton::rpc {

// One write is in flight at a time; while it is, further messages wait in order and are folded into
// the one before them where `merge` can do that, so a slow reader gets fewer and larger messages.
// What waits is bounded by bytes. Full case: Write returns kResourceExhausted, the message is
// dropped, and the stream can only be finished with an error.
//
// Owned by the reactor, which forwards OnWriteDone. The reactor must stay alive until its OnDone,
// which follows Finish. Thread-safe; calls into gRPC are made without holding the lock.
// `Reactor` is a template argument only for tests.
template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class StreamWriter {
 public:
  // Folds `next` into `last`, neither of them written yet; false when they must stay apart.
  using Merge = std::function<bool(Message& last, const Message& next)>;

  // `reactor` is borrowed. `merge` may be empty: nothing is folded.
  StreamWriter(Reactor* reactor, size_t max_pending_bytes, Merge merge)
      : reactor_(reactor), max_pending_bytes_(max_pending_bytes), merge_(std::move(merge)) {}

  // Queues or starts one write. kResourceExhausted (SLOW_READER): the reader is too slow;
  // kCancelled: the stream is broken; kFailedPrecondition: it has been finished.
  absl::Status Write(Message message);

  // Ends the stream after everything that waits has been written (at once when the stream is broken
  // or `status` is an error that makes the rest worthless). Only the first call counts; false for
  // later ones.
  bool Finish(grpc::Status status, bool discard_pending = false);

  // OK, or what Write returned when it dropped a message: what to finish such a stream with.
  absl::Status overflow() const {
    absl::MutexLock lock(&mutex_);
    return overflowed_ ? SlowReader() : absl::OkStatus();
  }

  // To be called by the reactor's OnWriteDone.
  void OnWriteDone(bool ok);

  // Bytes that wait, without the write in flight.
  size_t pending_bytes() const {
    absl::MutexLock lock(&mutex_);
    return pending_bytes_;
  }
  // Messages that were folded into another one.
  size_t merged_messages() const {
    absl::MutexLock lock(&mutex_);
    return merged_messages_;
  }

 private:
  enum class Next { kNothing, kWrite, kFinish };

  static absl::Status SlowReader() {
    return WithReason(absl::ResourceExhaustedError("the reader of the stream is too slow"),
                      reason::kSlowReader);
  }

  // Decides what to call into gRPC; the caller does it after it released the lock.
  Next NextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Call(Next next);

  Reactor* const reactor_;
  const size_t max_pending_bytes_;
  const Merge merge_;
  mutable absl::Mutex mutex_;
  std::deque<Message> pending_ ABSL_GUARDED_BY(mutex_);
  // Sum of the sizes of the messages as they came; folding only saves framing.
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t merged_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // reactor_->Finish has been or is being called
  std::optional<grpc::Status> final_status_ ABSL_GUARDED_BY(mutex_);
  // The write in flight; belongs to whoever set writing_, without the lock.
  Message current_;
  grpc::Status finish_status_;
};

template <typename Message, typename Reactor>
absl::Status StreamWriter<Message, Reactor>::Write(Message message) {
  Next next = Next::kNothing;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) {
      return absl::CancelledError("the stream is broken");
    }
    if (final_status_.has_value()) {
      return absl::FailedPreconditionError("the stream has been finished");
    }
    const size_t bytes = message.ByteSizeLong();
    if (overflowed_ || pending_bytes_ + bytes > max_pending_bytes_) {
      overflowed_ = true;
      return SlowReader();
    }
    pending_bytes_ += bytes;
    if (merge_ && !pending_.empty() && merge_(pending_.back(), message)) {
      ++merged_messages_;
    } else {
      pending_.push_back(std::move(message));
    }
    next = NextCall();
  }
  Call(next);
  return absl::OkStatus();
}

template <typename Message, typename Reactor>
bool StreamWriter<Message, Reactor>::Finish(grpc::Status status, bool discard_pending) {
  Next next = Next::kNothing;
  {
    absl::MutexLock lock(&mutex_);
    if (final_status_.has_value()) {
      return false;
    }
    final_status_ = std::move(status);
    if (discard_pending) {
      pending_.clear();
      pending_bytes_ = 0;
    }
    next = NextCall();
  }
  Call(next);
  return true;
}

template <typename Message, typename Reactor>
void StreamWriter<Message, Reactor>::OnWriteDone(bool ok) {
  Next next = Next::kNothing;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) {
      broken_ = true;
      pending_.clear();
      pending_bytes_ = 0;
    }
    next = NextCall();
  }
  Call(next);
}

template <typename Message, typename Reactor>
typename StreamWriter<Message, Reactor>::Next StreamWriter<Message, Reactor>::NextCall() {
  if (writing_ || finished_) {
    return Next::kNothing;
  }
  if (!pending_.empty()) {
    writing_ = true;
    current_ = std::move(pending_.front());
    pending_.pop_front();
    if (pending_.empty()) {
      pending_bytes_ = 0;
    } else {
      const size_t bytes = current_.ByteSizeLong();
      pending_bytes_ -= bytes < pending_bytes_ ? bytes : pending_bytes_;
    }
    return Next::kWrite;
  }
  if (final_status_.has_value()) {
    finished_ = true;
    finish_status_ = *final_status_;
    return Next::kFinish;
  }
  return Next::kNothing;
}

template <typename Message, typename Reactor>
void StreamWriter<Message, Reactor>::Call(Next next) {
  // Nothing of this object may be touched after the call into gRPC: the reactor may be gone.
  if (next == Next::kWrite) {
    reactor_->StartWrite(&current_);
  } else if (next == Next::kFinish) {
    reactor_->Finish(std::move(finish_status_));
  }
}

}  // namespace baton::rpc
