#include "common/transport/loopback/loopback_transport.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/chunk_cutter.h"
#include "common/transport/completion_queue.h"
#include "common/transport/inbound_window.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {
namespace {

// Bytes copied at once: a window can be withdrawn between two chunks.
constexpr size_t kChunkBytes = size_t{1} << 20;

class LoopbackConnection : public Connection {
 public:
  LoopbackConnection(std::string peer, std::weak_ptr<WindowTable> windows)
      : peer_(std::move(peer)), windows_(std::move(windows)) {}
  std::string_view carrier() const override { return "loopback"; }
  const std::string& peer() const { return peer_; }
  // The table of the peer that was connected to; null when it is gone (a new one of the same name
  // is another worker).
  std::shared_ptr<WindowTable> windows() const { return windows_.lock(); }

 private:
  const std::string peer_;
  const std::weak_ptr<WindowTable> windows_;
};

absl::Status PeerGone(const std::string& peer) {
  return absl::UnavailableError(absl::StrCat("loopback peer ", peer, " is gone"));
}

}  // namespace

void LoopbackNetwork::Attach(const std::string& name, std::weak_ptr<WindowTable> windows) {
  absl::MutexLock lock(&mutex_);
  tables_[name] = std::move(windows);
}

void LoopbackNetwork::Detach(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  tables_.erase(name);
}

std::shared_ptr<WindowTable> LoopbackNetwork::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = tables_.find(name);
  return found == tables_.end() ? nullptr : found->second.lock();
}

struct LoopbackTransport::OpenPost {
  std::shared_ptr<LoopbackConnection> connection;
  PostParams params;
  std::shared_ptr<InboundWindow> window;
  std::atomic<bool> cancelled{false};
};

LoopbackTransport::LoopbackTransport(std::shared_ptr<LoopbackNetwork> network,
                                     LoopbackOptions options)
    : network_(std::move(network)),
      options_(std::move(options)),
      completions_(std::make_shared<CompletionQueue>()),
      windows_(std::make_shared<WindowTable>(completions_)),
      ready_(std::make_shared<ReadyPosts>()) {
  network_->Attach(options_.name, windows_);
}

LoopbackTransport::~LoopbackTransport() {
  network_->Detach(options_.name);
  Release();
}

absl::StatusOr<std::unique_ptr<Window>> LoopbackTransport::Register(
    std::vector<std::span<std::byte>> extents, kernels::LandingMemory& memory) {
  return windows_->Register(extents, memory);
}

absl::StatusOr<std::shared_ptr<Connection>> LoopbackTransport::Connect(
    std::string_view connection_data) {
  std::string peer(connection_data);
  std::shared_ptr<WindowTable> windows = network_->Find(peer);
  if (windows == nullptr) {
    return PeerGone(peer);
  }
  return std::make_shared<LoopbackConnection>(std::move(peer), windows);
}

absl::Status LoopbackTransport::Post(const std::shared_ptr<Connection>& connection,
                                     PostParams params) {
  auto loopback = std::dynamic_pointer_cast<LoopbackConnection>(connection);
  if (loopback == nullptr) {
    return absl::InvalidArgumentError("the connection was not made by this transport");
  }
  const std::shared_ptr<WindowTable> windows = loopback->windows();
  if (windows == nullptr || network_->Find(loopback->peer()) != windows) {
    return PeerGone(loopback->peer());
  }
  auto post = std::make_shared<OpenPost>();
  post->window = windows->Find(params.window);
  post->connection = std::move(loopback);
  post->params = std::move(params);
  {
    absl::MutexLock lock(&mutex_);
    if (completions_->released()) {
      return absl::UnavailableError("the transport was released");
    }
    if (open_posts_.size() >= static_cast<size_t>(options_.max_open_posts)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.max_open_posts, " posts are open; retry after a completion"));
    }
    if (!open_posts_.emplace(post->params.tag, post).second) {
      return absl::AlreadyExistsError("a post with this tag is open");
    }
  }
  Start(post);
  return absl::OkStatus();
}

void LoopbackTransport::Start(const std::shared_ptr<OpenPost>& post) {
  const auto enqueue = [post, ready = ready_, completions = completions_](absl::Status verdict) {
    {
      absl::MutexLock lock(&ready->mutex);
      ready->posts.emplace_back(post, std::move(verdict));
    }
    completions->Wake();
  };
  if (post->window == nullptr) {
    enqueue(absl::FailedPreconditionError("the window is unknown or withdrawn"));
    return;
  }
  post->window->Claim(post->params.transfer_id, post.get(), enqueue);
  if (!IsOpen(post)) {  // it ended before it claimed
    post->window->Abandon(
        post->params.transfer_id, post.get(), absl::CancelledError("the post has ended"));
  }
  completions_->Wake();  // its deadline may be the next one
}

bool LoopbackTransport::IsOpen(const std::shared_ptr<OpenPost>& post) {
  absl::MutexLock lock(&mutex_);
  const auto open = open_posts_.find(post->params.tag);
  return open != open_posts_.end() && open->second == post;
}

void LoopbackTransport::CancelPost(uint64_t tag) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(tag);
    if (found == open_posts_.end()) {
      return;
    }
    found->second->cancelled = true;
  }
  completions_->Wake();
}

absl::Status LoopbackTransport::Expect(const ExpectParams& params) {
  return WindowTable::Announce(params);
}

std::vector<Completion> LoopbackTransport::Poll(absl::Time deadline) {
  for (;;) {
    RunReadyPosts();
    const absl::Time next = EndOverduePosts(absl::Now());
    std::vector<Completion> completions = completions_->Poll(std::min(deadline, next));
    if (!completions.empty() || completions_->released() || absl::Now() >= deadline) {
      return completions;
    }
  }
}

void LoopbackTransport::RunReadyPosts() {
  std::deque<std::pair<std::shared_ptr<OpenPost>, absl::Status>> ready;
  {
    absl::MutexLock lock(&ready_->mutex);
    ready.swap(ready_->posts);
  }
  for (auto& [post, verdict] : ready) {
    if (IsOpen(post)) {
      Complete(*post, verdict.ok() ? Execute(*post) : verdict);
    }
  }
}

absl::Status LoopbackTransport::Execute(OpenPost& post) {
  ChunkCutter cutter(post.params.runs, kChunkBytes);
  std::string chunk;
  while (!cutter.done()) {
    if (post.cancelled) {
      return absl::CancelledError("the post was cancelled");
    }
    if (absl::Now() >= post.params.deadline) {
      return absl::DeadlineExceededError("the post did not end by its deadline");
    }
    chunk.clear();
    const int64_t offset = cutter.Next(chunk);
    BATON_RETURN_IF_ERROR(post.window->Write(
        post.params.transfer_id, &post, offset, std::as_bytes(std::span(chunk))));
  }
  return post.window->Finish(post.params.transfer_id, &post, cutter.total_bytes());
}

void LoopbackTransport::Complete(OpenPost& post, absl::Status status) {
  if (!status.ok() && post.window != nullptr) {
    post.window->Abandon(
        post.params.transfer_id, &post, absl::UnavailableError("the sender gave the transfer up"));
    if (network_->Find(post.connection->peer()) == nullptr) {
      status = PeerGone(post.connection->peer());
    }
  }
  int64_t bytes = 0;
  for (const SendRun& run : post.params.runs) {
    bytes += static_cast<int64_t>(run.source.size());
  }
  const uint64_t tag = post.params.tag;
  {
    absl::MutexLock lock(&mutex_);
    open_posts_.erase(tag);
  }
  completions_->Push(Completion{
      .kind = CompletionKind::kSent, .tag = tag, .status = std::move(status), .bytes = bytes});
}

absl::Time LoopbackTransport::EndOverduePosts(absl::Time now) {
  const bool released = completions_->released();
  absl::Time next = absl::InfiniteFuture();
  std::vector<std::pair<std::shared_ptr<OpenPost>, absl::Status>> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [tag, post] : open_posts_) {
      if (released || post->cancelled) {
        ended.emplace_back(post, absl::CancelledError("the post was cancelled"));
      } else if (post->params.deadline <= now) {
        ended.emplace_back(post,
                           absl::DeadlineExceededError("the post did not end by its deadline"));
      } else {
        next = std::min(next, post->params.deadline);
      }
    }
  }
  for (auto& [post, status] : ended) {
    Complete(*post, std::move(status));
  }
  return next;
}

void LoopbackTransport::Release() {
  completions_->Release();
  windows_->WithdrawAll();
}

}  // namespace baton::transport
