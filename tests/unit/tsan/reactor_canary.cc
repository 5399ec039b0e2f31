// A small gRPC callback server and clients in one process, to prove that the preset `tsan` works:
//
//   reactor_canary clean    a reactor whose shared fields are guarded: no report, exit 0
//   reactor_canary race     the same with a planted race in a reactor: ThreadSanitizer's
//                           report naming CountMessage, exit 66
//
// Started by tsan_canary_test.cc. Built for the preset `tsan` only.

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/support/server_callback.h"

namespace baton::tsan_canary {
namespace {

constexpr char kMethod[] = "/baton.Canary/Echo";
constexpr int kMessagesPerCall = 20;
constexpr int kCallsPerThread = 10;
constexpr int kClientThreads = 4;

// What the reactors share. `guarded` is right; `unguarded` is the planted mistake, read by the
// main thread as a careless metrics page would.
struct Shared {
  absl::Mutex mutex;
  int guarded ABSL_GUARDED_BY(mutex) = 0;
  int cancelled ABSL_GUARDED_BY(mutex) = 0;
  volatile int unguarded = 0;
};

// Not inlined, so that the report names it.
[[gnu::noinline]] void CountMessage(Shared& shared, bool race) {
  if (race) {
    shared.unguarded = shared.unguarded + 1;
  }
  absl::MutexLock lock(&shared.mutex);
  ++shared.guarded;
}

// Echoes every message; deletes itself after the call. Its own fields are guarded by nothing but
// the order of its reactions, which run on different threads: the part that is hard to see.
class EchoReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EchoReactor(Shared& shared, bool race) : shared_(shared), race_(race) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    CountMessage(shared_, race_);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&message_);
    } else {
      Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the client is gone"));
    }
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    {
      absl::MutexLock lock(&shared_.mutex);
      shared_.cancelled += cancelled_ ? 1 : 0;
    }
    delete this;
  }

 private:
  Shared& shared_;
  const bool race_;
  bool cancelled_ = false;
  grpc::ByteBuffer message_;
};

// What protoc generates for a method of raw messages, without a .proto file.
class EchoService : public grpc::Service {
 public:
  EchoService(Shared& shared, bool race) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        0,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            [&shared, race](grpc::CallbackServerContext* /*context*/) {
              return new EchoReactor(shared, race);
            }));
  }
};

// Sends kMessagesPerCall messages, each after the echo of the one before it, then half-closes or
// cancels.
class Call : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Call(grpc::GenericStub& stub, bool cancel) : cancel_(cancel), message_(MakeMessage()) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    StartWrite(&message_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&echo_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (++echoes_ < kMessagesPerCall) {
      StartWrite(&message_);
    } else if (cancel_) {
      context_.TryCancel();
    } else {
      StartWritesDone();
    }
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_.Notify();
  }

  // Blocks until the call ended; true if it ended as it was meant to, with every echo.
  bool Await() {
    done_.WaitForNotification();
    const grpc::StatusCode meant = cancel_ ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK;
    return status_.error_code() == meant && echoes_ == kMessagesPerCall;
  }

 private:
  static grpc::ByteBuffer MakeMessage() {
    const grpc::Slice slice(std::string(100, 'b'));
    return grpc::ByteBuffer(&slice, 1);
  }

  const bool cancel_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer echo_;
  int echoes_ = 0;
  grpc::Status status_;
  absl::Notification done_;
};

// Runs pairs of concurrent calls; returns the number of calls that failed.
int RunClients(int port) {
  grpc::GenericStub stub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  std::atomic<int> failures = 0;
  absl::BlockingCounter running(kClientThreads);
  std::vector<std::thread> threads;
  threads.reserve(kClientThreads);
  for (int t = 0; t < kClientThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCallsPerThread; ++i) {
        Call first(stub, /*cancel=*/false);
        Call second(stub, /*cancel=*/i % 2 == 1);
        failures += first.Await() ? 0 : 1;
        failures += second.Await() ? 0 : 1;
      }
      running.DecrementCount();
    });
  }
  running.Wait();
  for (auto& thread : threads) thread.join();
  return failures.load();
}

// Reads the unguarded field beside the running reactors, with nothing that orders the reads.
void WatchUnguarded(const Shared& shared, const std::atomic<bool>& stop) {
  int seen = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    seen = shared.unguarded;
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::printf("last unguarded count: %d\n", seen);
}

int Run(bool race) {
  Shared shared;
  EchoService service(shared, race);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "the server did not start\n");
    return 1;
  }
  std::atomic<bool> stop = false;
  std::thread watcher([&] { WatchUnguarded(shared, stop); });
  const int failures = RunClients(port);
  stop.store(true, std::memory_order_relaxed);
  watcher.join();
  server->Shutdown();
  server->Wait();

  constexpr int kExpected = 2 * kClientThreads * kCallsPerThread * kMessagesPerCall;
  absl::MutexLock lock(&shared.mutex);
  std::printf("%d calls failed, %d of %d messages, %d calls cancelled\n",
              failures,
              shared.guarded,
              kExpected,
              shared.cancelled);
  return failures == 0 && shared.guarded == kExpected ? 0 : 1;
}

}  // namespace
}  // namespace baton::tsan_canary

int main(int argc, char** argv) {
  const std::string_view mode = argc == 2 ? argv[1] : "";
  if (mode != "clean" && mode != "race") {
    std::fprintf(stderr, "usage: reactor_canary clean|race\n");
    return 2;
  }
  return baton::tsan_canary::Run(mode == "race");
}
