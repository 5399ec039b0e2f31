#include "common/transport/outbound_posts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"

namespace baton::transport {

void OutboundPosts::Post::Skip(size_t bytes) {
  position += bytes;
  if (position == params.runs[run_index].source.size()) {
    ++run_index;
    position = 0;
  }
}

std::pair<uint64_t, OutboundPosts::Post&> OutboundPosts::Start(PostParams params) {
  const uint64_t id = next_++;
  Post& post = posts_[id];
  post.params = std::move(params);
  std::erase_if(post.params.runs, [](const SendRun& run) { return run.source.empty(); });
  for (const SendRun& run : post.params.runs) {
    post.total_bytes += static_cast<int64_t>(run.source.size());
  }
  of_tag_[post.params.tag] = id;
  return {id, post};
}

absl::Status OutboundPosts::MakeReady(uint64_t id) {
  const auto found = posts_.find(id);
  if (found == posts_.end() || found->second.given_up.has_value()) {
    return absl::OkStatus();  // it crossed the end of the post
  }
  const Post& post = found->second;
  if (post.run_index != 0 || post.position != 0 ||
      std::find(ready_.begin(), ready_.end(), id) != ready_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("post ", id, " was called ready twice"));
  }
  ready_.push_back(id);
  return absl::OkStatus();
}

std::pair<uint64_t, OutboundPosts::Post&> OutboundPosts::TakeReady() {
  const uint64_t id = ready_.front();
  ready_.pop_front();
  return {id, posts_.at(id)};
}

absl::Status OutboundPosts::TakeVerdict(uint64_t id, int code, const std::string& message) {
  const auto found = posts_.find(id);
  if (found == posts_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("a verdict of no post, ", id));
  }
  const Post& post = found->second;
  absl::Status status(static_cast<absl::StatusCode>(code), message);
  if (status.ok() && !post.told()) {
    return absl::InvalidArgumentError("a transfer was called complete before its last byte");
  }
  End(id, status.ok() ? status : post.given_up.value_or(status));
  return absl::OkStatus();
}

void OutboundPosts::Cancel(uint64_t tag, const absl::Status& reason) {
  if (const auto found = of_tag_.find(tag); found != of_tag_.end()) {
    GiveUp(found->second, posts_.at(found->second), reason);
  }
}

void OutboundPosts::CancelAll(const absl::Status& reason) {
  for (auto& [id, post] : posts_) {
    GiveUp(id, post, reason);
  }
}

void OutboundPosts::GiveUp(uint64_t id, Post& post, const absl::Status& reason) {
  if (post.given_up.has_value()) {
    return;
  }
  post.given_up = reason;
  post.given_up_at = absl::Now();
  std::erase(ready_, id);
  release_(id);
}

void OutboundPosts::End(uint64_t id, absl::Status status) {
  const auto found = posts_.find(id);
  const Completion completion = {.kind = CompletionKind::kSent,
                                 .tag = found->second.params.tag,
                                 .status = std::move(status),
                                 .bytes = found->second.total_bytes};
  std::erase(ready_, id);
  of_tag_.erase(completion.tag);
  posts_.erase(found);
  completed_(completion);
}

absl::Status OutboundPosts::EndOverdue(absl::Time now, absl::Time& next) {
  for (auto& [id, post] : posts_) {
    if (post.params.deadline <= now) {
      GiveUp(
          id, post, absl::DeadlineExceededError("the peer did not take the bytes by the deadline"));
    }
    if (now - post.given_up_at > kStuck) {
      return absl::UnavailableError("the peer does not answer");
    }
    next = std::min(next,
                    post.given_up.has_value() ? post.given_up_at + kStuck + absl::Milliseconds(1)
                                              : post.params.deadline);
  }
  return absl::OkStatus();
}

void OutboundPosts::Close(const absl::Status& reason) {
  while (!posts_.empty()) {
    const auto& [id, post] = *posts_.begin();
    End(id, post.given_up.value_or(reason));
  }
}

}  // namespace baton::transport
