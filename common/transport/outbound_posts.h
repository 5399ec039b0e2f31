// The posts of one connection to a receiver that asks for their bytes and gives a verdict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"

namespace baton::transport {

// A post is requested by its number, called ready by the receiver, told in order of its runs and
// completes with the receiver's verdict, behind which the receiver reads nothing of it. One that is
// given up waits for its verdict all the same. Not thread-safe.
class OutboundPosts {
 public:
  // The connection is to be given up when the verdict of a post that was given up takes longer: its
  // source must be free soon.
  static constexpr absl::Duration kStuck = absl::Seconds(2);

  using OnCompletion = std::function<void(Completion)>;
  // Tells the receiver that a post is given up.
  using Release = std::function<void(uint64_t id)>;

  struct Post {
    PostParams params;  // without empty runs
    int64_t total_bytes = 0;
    size_t run_index = 0;  // the next byte to tell
    size_t position = 0;   // within the run
    std::optional<absl::Status> given_up{};
    absl::Time given_up_at = absl::InfiniteFuture();

    bool told() const { return run_index == params.runs.size(); }
    // What is left of the run; not of a post that was told.
    int64_t offset() const {
      return params.runs[run_index].offset + static_cast<int64_t>(position);
    }
    std::span<const std::byte> bytes() const {
      return params.runs[run_index].source.subspan(position);
    }
    // Some of these were told.
    void Skip(size_t bytes);
  };

  // `completed` is called once for every started post, and must start none.
  OutboundPosts(OnCompletion completed, Release release)
      : completed_(std::move(completed)), release_(std::move(release)) {}

  // Its number, and the post, which lives until its verdict.
  std::pair<uint64_t, Post&> Start(PostParams params);
  // The receiver waits for the post's bytes. Ignores one that is given up or gone;
  // kInvalidArgument the second time.
  absl::Status MakeReady(uint64_t id);
  // Whether bytes of a post can be told.
  bool has_ready() const { return !ready_.empty(); }
  // The post that has waited longest, which then waits for nothing.
  std::pair<uint64_t, Post&> TakeReady();
  // It waits for its next turn.
  void PutBack(uint64_t id) { ready_.push_back(id); }
  // Ends the post. kInvalidArgument when there is none, or it is not told and called complete.
  absl::Status TakeVerdict(uint64_t id, int code, const std::string& message);

  // Ignores an unknown tag.
  void Cancel(uint64_t tag, const absl::Status& reason);
  void CancelAll(const absl::Status& reason);
  // Gives up posts past their deadline; kUnavailable when the peer is stuck. `next` becomes the
  // next time to look, if that is earlier.
  absl::Status EndOverdue(absl::Time now, absl::Time& next);
  // Every post ends with `reason`, or that for which it was given up.
  void Close(const absl::Status& reason);

 private:
  void GiveUp(uint64_t id, Post& post, const absl::Status& reason);
  void End(uint64_t id, absl::Status status);

  const OnCompletion completed_;
  const Release release_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, Post> posts_;
  std::unordered_map<uint64_t, uint64_t> of_tag_;
  std::deque<uint64_t> ready_;  // each once
};

}  // namespace baton::transport
