// Transport within one process: for tests, and for the lab's split mode.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {

// The transports that can reach each other. Thread-safe.
class LoopbackNetwork {
 public:
  // The windows of one transport while it lives.
  void Attach(const std::string& name, std::weak_ptr<WindowTable> windows);
  void Detach(const std::string& name);
  // Null when no transport of this name lives.
  std::shared_ptr<WindowTable> Find(const std::string& name) const;

 private:
  mutable absl::Mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<WindowTable>> tables_ ABSL_GUARDED_BY(mutex_);
};

struct LoopbackOptions {
  // Unique in the network; it is the connection data.
  std::string name{};
  int32_t max_open_posts = 4096;
};

// Posts are executed inside the sender's Poll, so that one progress thread per side is needed as
// with every other back end. Destroying it looks to its peers like a dead worker.
class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackNetwork> network, LoopbackOptions options);
  ~LoopbackTransport() override;

  std::string_view name() const override { return "loopback"; }
  std::string connection_data() const override { return options_.name; }
  absl::StatusOr<std::unique_ptr<Window>> Register(std::vector<std::span<std::byte>> extents,
                                                   kernels::LandingMemory& memory) override;
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;
  absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) override;
  void CancelPost(uint64_t tag) override;
  absl::Status Expect(const ExpectParams& params) override;
  std::vector<Completion> Poll(absl::Time deadline) override;
  void Release() override;

 private:
  struct OpenPost;
  // Posts that their window has answered, with the verdict; shared with callbacks that a window may
  // keep longer than this transport lives.
  struct ReadyPosts {
    absl::Mutex mutex;
    std::deque<std::pair<std::shared_ptr<OpenPost>, absl::Status>> posts ABSL_GUARDED_BY(mutex);
  };

  void Start(const std::shared_ptr<OpenPost>& post);
  // Whether it has not ended.
  bool IsOpen(const std::shared_ptr<OpenPost>& post);
  // The rest runs inside Poll only.
  void RunReadyPosts();
  absl::Status Execute(OpenPost& post);
  void Complete(OpenPost& post, absl::Status status);
  // Ends cancelled posts and those past their deadline; returns the next deadline.
  absl::Time EndOverduePosts(absl::Time now);

  const std::shared_ptr<LoopbackNetwork> network_;
  const LoopbackOptions options_;
  const std::shared_ptr<CompletionQueue> completions_;
  const std::shared_ptr<WindowTable> windows_;
  const std::shared_ptr<ReadyPosts> ready_;

  absl::Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<OpenPost>> open_posts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
