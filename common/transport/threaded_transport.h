// A transport that makes all progress on one thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "common/transport/completion_queue.h"
#include "common/transport/inbox.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {

// Handle of an outgoing connection; thread-safe. Its last reference closes the connection.
class PeerConnection : public Connection {
 public:
  PeerConnection(uint64_t id,
                 std::string carrier,
                 std::function<void()> close,
                 bool reads_devices = false)
      : id_(id),
        carrier_(std::move(carrier)),
        close_(std::move(close)),
        reads_devices_(reads_devices) {}
  ~PeerConnection() override { close_(); }
  std::string_view carrier() const override { return carrier_; }
  bool reads_devices() const override { return reads_devices_; }
  bool lost() const override { return lost_; }
  uint64_t id() const { return id_; }
  void set_lost() { lost_ = true; }

 private:
  const uint64_t id_;
  const std::string carrier_;
  const std::function<void()> close_;
  const bool reads_devices_;
  std::atomic<bool> lost_{false};
};

// A Connect that waits for its answer. Shared by the caller and the progress thread.
struct ConnectCall {
  absl::Notification done;
  absl::StatusOr<std::shared_ptr<PeerConnection>> result = absl::UnknownError("not done");

  void Answer(absl::StatusOr<std::shared_ptr<PeerConnection>> answer) {
    result = std::move(answer);
    done.Notify();
  }
};

// What the thread does. All but Run are called by it, from Run.
class PostProgress {
 public:
  virtual ~PostProgress() = default;
  // Until Stop has ended every connection.
  virtual void Run() = 0;
  // Starts a post, which completes once.
  virtual void Post(uint64_t connection, PostParams params) = 0;
  // An unknown tag is ignored.
  virtual void Cancel(uint64_t tag) = 0;
  virtual void CancelAll() = 0;
  virtual void Stop() = 0;
};

// Thread-safe. Windows are copied into; posts are bounded and named by their tags. A subclass has
// the progress, starts the thread when that is complete, and ends it in its destructor.
class ThreadedTransport : public Transport {
 public:
  absl::StatusOr<std::unique_ptr<Window>> Register(std::vector<std::span<std::byte>> extents,
                                                   kernels::LandingMemory& memory) override {
    return windows_->Register(extents, memory);
  }
  absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) override;
  void CancelPost(uint64_t tag) override;
  absl::Status Expect(const ExpectParams& params) override { return WindowTable::Announce(params); }
  std::vector<Completion> Poll(absl::Time deadline) override {
    return completions_->Poll(deadline);
  }
  void Release() override;

 protected:
  explicit ThreadedTransport(int32_t max_open_posts) : max_open_posts_(max_open_posts) {}

  const std::shared_ptr<WindowTable>& windows() const { return windows_; }
  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  // Takes the completion of a post, from the progress thread.
  std::function<void(Completion)> OnSent();
  // `progress` is borrowed until StopThread. The inbox is open.
  void StartThread(PostProgress& progress);
  // No harm without a thread.
  void StopThread();
  // Has `connect` run by the progress thread, which must answer the call, and waits for that.
  // Errors name `address`.
  absl::StatusOr<std::shared_ptr<Connection>> AwaitConnect(
      std::string_view address,
      std::function<void(const std::shared_ptr<ConnectCall>& call)> connect);

 private:
  void EndPost(Completion completion);

  const int32_t max_open_posts_;
  const std::shared_ptr<CompletionQueue> completions_ = std::make_shared<CompletionQueue>();
  const std::shared_ptr<WindowTable> windows_ = std::make_shared<WindowTable>(completions_);
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  PostProgress* progress_ = nullptr;
  std::thread thread_;

  absl::Mutex mutex_;
  // Posts by tag; each keeps its connection.
  std::unordered_map<uint64_t, std::shared_ptr<PeerConnection>> open_posts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
