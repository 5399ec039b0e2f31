// A transport that damages, delays or loses posts; for tests.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/transport/transport.h"

namespace baton::transport {

// Decorates the sending side of another transport, which is borrowed. Thread-safe.
class FaultyTransport : public Transport {
 public:
  explicit FaultyTransport(Transport* inner) : inner_(inner) {}

  // The next `count` posts arrive with one bit of their first byte flipped.
  void CorruptPosts(int count);
  // The next post is given to `edit`, which may point its runs at memory of its own.
  void EditNextPost(std::function<void(PostParams&)> edit);
  // The next `count` posts are swallowed: they complete only by CancelPost, Release or a deadline.
  void DropPosts(int count);
  // Posts are kept back until Resume.
  void Hold();
  void Resume();
  // Every post and Connect fails with kUnavailable while on.
  void FailConnection(bool on);
  int64_t posts() const;

  std::string_view name() const override { return inner_->name(); }
  std::string connection_data() const override { return inner_->connection_data(); }
  absl::StatusOr<std::unique_ptr<Window>> Register(std::vector<std::span<std::byte>> extents,
                                                   kernels::LandingMemory& memory) override {
    return inner_->Register(std::move(extents), memory);
  }
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;
  absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) override;
  void CancelPost(uint64_t tag) override;
  absl::Status Expect(const ExpectParams& params) override { return inner_->Expect(params); }
  std::vector<Completion> Poll(absl::Time deadline) override;
  void Release() override;

 private:
  struct KeptPost {
    std::shared_ptr<Connection> connection;
    PostParams params;
    bool dropped = false;
  };

  void Corrupt(PostParams& params) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndKept(uint64_t tag, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Transport* const inner_;
  mutable absl::Mutex mutex_;
  int corrupt_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void(PostParams&)> edit_ ABSL_GUARDED_BY(mutex_);
  int drop_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool fail_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t posts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, KeptPost> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<Completion> completions_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> damaged_ ABSL_GUARDED_BY(mutex_);  // outlives every post
};

}  // namespace baton::transport
