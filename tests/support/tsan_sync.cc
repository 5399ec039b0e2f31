// Makes ThreadSanitizer see the synchronisation of Debian's Abseil. The packaged libabsl and
// libgrpc are not instrumented, so their mutexes order memory in ways that ThreadSanitizer cannot
// observe, and every field guarded by an absl::Mutex would be reported. The definitions below take
// the place of the library's own (a symbol of the executable wins over one of a shared library),
// call it, and tell ThreadSanitizer what was acquired or released. gRPC's own locks are
// absl::Mutex too, so most hand-overs between its threads become visible in the same way; the one
// that is lock-free inside gRPC, from starting an operation of a call to its completion, is
// covered at the end of this file.
//
// Linked into every test and binary of the preset `tsan` and into nothing else. All functions are
// as thread-safe as the ones they wrap; nothing here allocates or owns.

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/base/config.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpc/grpc.h"
#include "grpcpp/support/server_callback.h"

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): the sanitizer's names
void __tsan_acquire(void* address);
void __tsan_release(void* address);
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
}

namespace {

// The library's own definition of a mangled symbol, as a plain function whose first parameter is
// `this` (Itanium C++ ABI). A missing one means another Abseil than Debian 12's, for which this
// unit has to be written anew; the process ends, since a lock cannot report an error.
template <typename Function>
Function* Next(const char* symbol) {
  void* const address = dlsym(RTLD_NEXT, symbol);
  if (address == nullptr) {
    std::fprintf(stderr, "tests/support/tsan_sync.cc: Abseil has no symbol %s\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(address);
}

void Acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }

void Release(const void* address) { __tsan_release(const_cast<void*>(address)); }

// The mutex on whose behalf this thread may be evaluating a Condition. Abseil evaluates the
// conditions of waiting threads inside another thread's Unlock, after our release and still under
// the lock; Condition::Eval below uses this to order those reads as well.
thread_local const absl::Mutex* evaluating = nullptr;

class EvaluationScope {
 public:
  explicit EvaluationScope(const absl::Mutex* mutex) : previous_(evaluating) { evaluating = mutex; }
  ~EvaluationScope() { evaluating = previous_; }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  const absl::Mutex* previous_;
};

// Where Notification keeps its flag: behind its mutex. HasBeenNotified is an inline atomic load of
// it, so a release at this very address is what that load acquires.
const char* FlagOf(const absl::Notification* notification) {
  return reinterpret_cast<const char*>(notification) + sizeof(absl::Mutex);
}

}  // namespace

// The pattern of all wrappers. LOCKING: acquire after the call; UNLOCKING: release before it;
// WAITING: release, wait, acquire.
#define BATON_TSAN_LOCKING(method, symbol)                 \
  void Mutex::method() ABSL_NO_THREAD_SAFETY_ANALYSIS {    \
    static auto* const kNext = Next<void(Mutex*)>(symbol); \
    kNext(this);                                           \
    Acquire(this);                                         \
  }

#define BATON_TSAN_UNLOCKING(method, symbol)               \
  void Mutex::method() ABSL_NO_THREAD_SAFETY_ANALYSIS {    \
    static auto* const kNext = Next<void(Mutex*)>(symbol); \
    EvaluationScope scope(this);                           \
    Release(this);                                         \
    kNext(this);                                           \
  }

#define BATON_TSAN_TRYING(method, symbol)                  \
  bool Mutex::method() ABSL_NO_THREAD_SAFETY_ANALYSIS {    \
    static auto* const kNext = Next<bool(Mutex*)>(symbol); \
    const bool locked = kNext(this);                       \
    if (locked) Acquire(this);                             \
    return locked;                                         \
  }

#define BATON_TSAN_LOCKING_WHEN(method, symbol)                                   \
  void Mutex::method(const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS { \
    static auto* const kNext = Next<void(Mutex*, const Condition&)>(symbol);      \
    EvaluationScope scope(this);                                                  \
    kNext(this, condition);                                                       \
    Acquire(this);                                                                \
  }

// Both LockWhenWith... and AwaitWith... hold the lock on return, whether or not the time ran out.
#define BATON_TSAN_LIMITED_WAITING(method, Limit, symbol)                                      \
  bool Mutex::method(const Condition& condition, Limit limit) ABSL_NO_THREAD_SAFETY_ANALYSIS { \
    static auto* const kNext = Next<bool(Mutex*, const Condition&, Limit)>(symbol);            \
    EvaluationScope scope(this);                                                               \
    Release(this);                                                                             \
    const bool fulfilled = kNext(this, condition, limit);                                      \
    Acquire(this);                                                                             \
    return fulfilled;                                                                          \
  }

#define BATON_TSAN_LIMITED_LOCKING(method, Limit, symbol)                                      \
  bool Mutex::method(const Condition& condition, Limit limit) ABSL_NO_THREAD_SAFETY_ANALYSIS { \
    static auto* const kNext = Next<bool(Mutex*, const Condition&, Limit)>(symbol);            \
    EvaluationScope scope(this);                                                               \
    const bool fulfilled = kNext(this, condition, limit);                                      \
    Acquire(this);                                                                             \
    return fulfilled;                                                                          \
  }

#define BATON_TSAN_NOTIFIED_WITHIN(method, Limit, symbol)                      \
  bool Notification::method(Limit limit) const {                               \
    static auto* const kNext = Next<bool(const Notification*, Limit)>(symbol); \
    const bool notified = kNext(this, limit);                                  \
    if (notified) Acquire(FlagOf(this));                                       \
    return notified;                                                           \
  }

namespace absl {
ABSL_NAMESPACE_BEGIN

BATON_TSAN_LOCKING(Lock, "_ZN4absl7debian35Mutex4LockEv")
BATON_TSAN_LOCKING(ReaderLock, "_ZN4absl7debian35Mutex10ReaderLockEv")
BATON_TSAN_UNLOCKING(Unlock, "_ZN4absl7debian35Mutex6UnlockEv")
BATON_TSAN_UNLOCKING(ReaderUnlock, "_ZN4absl7debian35Mutex12ReaderUnlockEv")
BATON_TSAN_TRYING(TryLock, "_ZN4absl7debian35Mutex7TryLockEv")
BATON_TSAN_TRYING(ReaderTryLock, "_ZN4absl7debian35Mutex13ReaderTryLockEv")

BATON_TSAN_LOCKING_WHEN(LockWhen, "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE")
BATON_TSAN_LOCKING_WHEN(ReaderLockWhen, "_ZN4absl7debian35Mutex14ReaderLockWhenERKNS0_9ConditionE")
BATON_TSAN_LIMITED_LOCKING(LockWhenWithTimeout,
                           Duration,
                           "_ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_"
                           "8DurationE")
BATON_TSAN_LIMITED_LOCKING(LockWhenWithDeadline,
                           Time,
                           "_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_"
                           "4TimeE")
BATON_TSAN_LIMITED_LOCKING(ReaderLockWhenWithTimeout,
                           Duration,
                           "_ZN4absl7debian35Mutex25ReaderLockWhenWithTimeoutERKNS0_9ConditionENS0_"
                           "8DurationE")
BATON_TSAN_LIMITED_LOCKING(ReaderLockWhenWithDeadline,
                           Time,
                           "_ZN4absl7debian35Mutex26ReaderLockWhenWithDeadlineERKNS0_9ConditionE"
                           "NS0_4TimeE")
BATON_TSAN_LIMITED_WAITING(AwaitWithTimeout,
                           Duration,
                           "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_"
                           "8DurationE")
BATON_TSAN_LIMITED_WAITING(AwaitWithDeadline,
                           Time,
                           "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE")

void Mutex::Await(const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static auto* const kNext =
      Next<void(Mutex*, const Condition&)>("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  EvaluationScope scope(this);
  Release(this);
  kNext(this, condition);
  Acquire(this);
}

bool Condition::Eval() const {
  static auto* const kNext = Next<bool(const Condition*)>("_ZNK4absl7debian39Condition4EvalEv");
  const absl::Mutex* const mutex = evaluating;
  if (mutex == nullptr) return kNext(this);
  Acquire(mutex);
  const bool fulfilled = kNext(this);
  Release(mutex);
  return fulfilled;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const kNext =
      Next<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  Release(mutex);
  kNext(this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const kNext = Next<bool(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  Release(mutex);
  const bool expired = kNext(this, mutex, timeout);
  Acquire(mutex);
  return expired;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const kNext = Next<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  Release(mutex);
  const bool expired = kNext(this, mutex, deadline);
  Acquire(mutex);
  return expired;
}

void Notification::Notify() {
  static auto* const kNext = Next<void(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  Release(FlagOf(this));
  kNext(this);
}

void Notification::WaitForNotification() const {
  static auto* const kNext =
      Next<void(const Notification*)>("_ZNK4absl7debian312Notification19WaitForNotificationEv");
  kNext(this);
  Acquire(FlagOf(this));
}

BATON_TSAN_NOTIFIED_WITHIN(
    WaitForNotificationWithTimeout,
    Duration,
    "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE")
BATON_TSAN_NOTIFIED_WITHIN(
    WaitForNotificationWithDeadline,
    Time,
    "_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE")

bool BlockingCounter::DecrementCount() {
  static auto* const kNext =
      Next<bool(BlockingCounter*)>("_ZN4absl7debian315BlockingCounter14DecrementCountEv");
  Release(this);
  return kNext(this);
}

void BlockingCounter::Wait() {
  static auto* const kNext =
      Next<void(BlockingCounter*)>("_ZN4absl7debian315BlockingCounter4WaitEv");
  kNext(this);
  Acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl

// gRPC passes an operation from the thread that starts it to the thread that runs the reaction
// through lock-free queues. Every batch of operations goes in by grpc_call_start_batch under a tag
// and its completion comes out of a completion queue with the same tag, in blocking calls and in
// the callback API alike (whose threads take reactions from such a queue). An edge between the two
// orders what the starting thread did before what the reaction does, and nothing else.
extern "C" grpc_call_error grpc_call_start_batch(
    grpc_call* call, const grpc_op* ops, size_t num_ops, void* tag, void* reserved) {
  static auto* const kNext =
      Next<grpc_call_error(grpc_call*, const grpc_op*, size_t, void*, void*)>(
          "grpc_call_start_batch");
  Release(tag);
  return kNext(call, ops, num_ops, tag, reserved);
}

extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                                 gpr_timespec deadline,
                                                 void* reserved) {
  static auto* const kNext =
      Next<grpc_event(grpc_completion_queue*, gpr_timespec, void*)>("grpc_completion_queue_next");
  const grpc_event event = kNext(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) Acquire(event.tag);
  return event;
}

extern "C" grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue,
                                                  void* tag,
                                                  gpr_timespec deadline,
                                                  void* reserved) {
  static auto* const kNext = Next<grpc_event(grpc_completion_queue*, void*, gpr_timespec, void*)>(
      "grpc_completion_queue_pluck");
  const grpc_event event = kNext(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) Acquire(event.tag);
  return event;
}

// gRPC counts what a server call still waits for before OnDone and before OnCancel in two atomics.
// Part of the counting is inlined into our code and seen; the part in the library is not. The edges
// below stand for the library's part: what every other reaction did comes before OnDone, and what
// the handler did comes before OnCancel.
namespace grpc::internal {
namespace {

// ServerCallbackCall: virtual table, on_cancel_conditions_remaining_, callbacks_outstanding_.
const char* CancelCountOf(const ServerCallbackCall* call) {
  return reinterpret_cast<const char*>(call) + sizeof(void*);
}
const char* DoneCountOf(const ServerCallbackCall* call) {
  return CancelCountOf(call) + sizeof(std::atomic_int);
}

// Stands before the reactor for OnCancel only, because the library counts down right behind it.
class CancelProxy final : public ServerReactor {
 public:
  CancelProxy(const ServerCallbackCall* call, ServerReactor* reactor, bool inlineable)
      : call_(call), reactor_(reactor), inlineable_(inlineable) {}

  void OnCancel() override {
    reactor_->OnCancel();
    Release(DoneCountOf(call_));
    delete this;
  }
  void OnDone() override {}

 private:
  bool InternalInlineable() override { return inlineable_; }

  const ServerCallbackCall* const call_;
  ServerReactor* const reactor_;
  const bool inlineable_;
};

}  // namespace

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const kNext = Next<void(ServerCallbackCall*, bool)>(
      "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  Acquire(DoneCountOf(this));
  kNext(this, inline_ondone);
}

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const kNext = Next<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
  Acquire(CancelCountOf(this));
  kNext(this, new CancelProxy(this, reactor, reactor->InternalInlineable()));
}

}  // namespace grpc::internal
