#include "tests/support/faulty_transport.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace baton::transport {

void FaultyTransport::CorruptPosts(int count) {
  absl::MutexLock lock(&mutex_);
  corrupt_ = count;
}

void FaultyTransport::EditNextPost(std::function<void(PostParams&)> edit) {
  absl::MutexLock lock(&mutex_);
  edit_ = std::move(edit);
}

void FaultyTransport::DropPosts(int count) {
  absl::MutexLock lock(&mutex_);
  drop_ = count;
}

void FaultyTransport::Hold() {
  absl::MutexLock lock(&mutex_);
  hold_ = true;
}

void FaultyTransport::Resume() {
  std::map<uint64_t, KeptPost> kept;
  {
    absl::MutexLock lock(&mutex_);
    hold_ = false;
    for (auto it = kept_.begin(); it != kept_.end();) {
      const auto next = std::next(it);
      if (!it->second.dropped) {
        kept.insert(kept_.extract(it));
      }
      it = next;
    }
  }
  for (auto& [tag, post] : kept) {
    absl::Status status = inner_->Post(post.connection, std::move(post.params));
    if (!status.ok()) {
      absl::MutexLock lock(&mutex_);
      completions_.push_back(Completion{.tag = tag, .status = std::move(status)});
    }
  }
}

void FaultyTransport::FailConnection(bool on) {
  absl::MutexLock lock(&mutex_);
  fail_ = on;
}

int64_t FaultyTransport::posts() const {
  absl::MutexLock lock(&mutex_);
  return posts_;
}

absl::StatusOr<std::shared_ptr<Connection>> FaultyTransport::Connect(
    std::string_view connection_data) {
  {
    absl::MutexLock lock(&mutex_);
    if (fail_) {
      return absl::UnavailableError("the connection was made to fail");
    }
  }
  return inner_->Connect(connection_data);
}

void FaultyTransport::Corrupt(PostParams& params) {
  SendRun& run = params.runs.front();
  std::vector<std::byte>& copy = damaged_.emplace_back(run.source.begin(), run.source.end());
  copy.front() ^= std::byte{0x10};
  run.source = copy;
}

absl::Status FaultyTransport::Post(const std::shared_ptr<Connection>& connection,
                                   PostParams params) {
  {
    absl::MutexLock lock(&mutex_);
    ++posts_;
    if (fail_) {
      return absl::UnavailableError("the connection was made to fail");
    }
    if (corrupt_ > 0) {
      --corrupt_;
      Corrupt(params);
    }
    if (edit_ != nullptr) {
      std::exchange(edit_, nullptr)(params);
    }
    const bool drop = drop_ > 0;
    if (drop || hold_) {
      drop_ -= drop ? 1 : 0;
      const uint64_t tag = params.tag;
      kept_.emplace(tag, KeptPost{connection, std::move(params), drop});
      return absl::OkStatus();
    }
  }
  return inner_->Post(connection, std::move(params));
}

void FaultyTransport::EndKept(uint64_t tag, absl::Status status) {
  kept_.erase(tag);
  completions_.push_back(Completion{.tag = tag, .status = std::move(status)});
}

void FaultyTransport::CancelPost(uint64_t tag) {
  {
    absl::MutexLock lock(&mutex_);
    if (kept_.contains(tag)) {
      EndKept(tag, absl::CancelledError("the post was cancelled"));
      return;
    }
  }
  inner_->CancelPost(tag);
}

std::vector<Completion> FaultyTransport::Poll(absl::Time deadline) {
  for (;;) {
    const absl::Time slice = std::min(deadline, absl::Now() + absl::Milliseconds(2));
    std::vector<Completion> completions = inner_->Poll(slice);
    absl::MutexLock lock(&mutex_);
    std::vector<uint64_t> overdue;
    for (const auto& [tag, post] : kept_) {
      if (released_ || post.params.deadline <= absl::Now()) {
        overdue.push_back(tag);
      }
    }
    for (const uint64_t tag : overdue) {
      EndKept(tag,
              released_ ? absl::CancelledError("the transport was released")
                        : absl::DeadlineExceededError("the post did not end by its deadline"));
    }
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
    if (!completions.empty() || released_ || absl::Now() >= deadline) {
      return completions;
    }
  }
}

void FaultyTransport::Release() {
  {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }
  inner_->Release();
}

}  // namespace baton::transport
