#include "common/transport/ucx/outbound_peer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/message_writer.h"
#include "common/transport/ucx/put_writer.h"

namespace baton::transport::ucx {
namespace {

constexpr uint32_t kMinSlotBytes = 4096;

}  // namespace

OutboundPeer::OutboundPeer(uint64_t connection,
                           std::unique_ptr<Endpoint> endpoint,
                           OnCompletion completed)
    : connection_(connection),
      endpoint_(std::move(endpoint)),
      completed_(std::move(completed)),
      since_(absl::Now()) {
  endpoint_->Send({.connection = 0, .body = Hello{.connection = connection_}});
}

OutboundPeer::~OutboundPeer() { Close(absl::CancelledError("the connection was closed")); }

absl::Status OutboundPeer::Take(const Message& message) {
  if (closed_) {
    return absl::OkStatus();
  }
  last_heard_ = absl::Now();
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    return TakeWelcome(*welcome);
  }
  if (!welcomed()) {
    const auto* refusal = std::get_if<Verdict>(&message.body);
    return refusal == nullptr || refusal->code == 0
               ? absl::InvalidArgumentError("a message came before Welcome")
               : absl::Status(static_cast<absl::StatusCode>(refusal->code), refusal->message);
  }
  if (const auto* grant = std::get_if<Grant>(&message.body)) {
    return TakeGrant(*grant);
  }
  if (const auto* verdict = std::get_if<Verdict>(&message.body)) {
    return TakeVerdict(*verdict);
  }
  return absl::InvalidArgumentError("a message that only senders send");
}

absl::Status OutboundPeer::TakeWelcome(const Welcome& welcome) {
  if (welcomed()) {
    return absl::InvalidArgumentError("a second Welcome");
  }
  if (welcome.slot_bytes < kMinSlotBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots of ", welcome.slot_bytes, " bytes; at least ", kMinSlotBytes));
  }
  if (welcome.rkey.empty()) {
    if (welcome.slot_bytes > kMaxCarriedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages of ", welcome.slot_bytes, " bytes; at most ", kMaxCarriedBytes));
    }
    writer_ = std::make_unique<MessageWriter>(*endpoint_, welcome.connection);
  } else {
    BATON_ASSIGN_OR_RETURN(writer_, PutWriter::Make(*endpoint_, welcome));
  }
  slots_ = welcome;
  peer_connection_ = welcome.connection;
  return absl::OkStatus();
}

void OutboundPeer::Start(PostParams params) {
  post_of_tag_.emplace(params.tag, next_post_);
  Ask(std::move(params), [this](Completion completion) {
    post_of_tag_.erase(completion.tag);
    completed_(std::move(completion));
  });
}

void OutboundPeer::Probe(std::span<const std::byte> source,
                         absl::Time deadline,
                         OnCompletion completed) {
  Ask({.runs = {{.offset = 0, .source = source}}, .deadline = deadline}, std::move(completed));
}

void OutboundPeer::Ask(PostParams params, OnCompletion completed) {
  const uint64_t id = next_post_++;
  Post& post = posts_[id];
  post.completed = std::move(completed);
  post.params = std::move(params);
  std::erase_if(post.params.runs, [](const SendRun& run) { return run.source.empty(); });
  for (const SendRun& run : post.params.runs) {
    post.total_bytes += static_cast<int64_t>(run.source.size());
  }
  if (closed_ || !welcomed()) {
    post.ended = absl::UnavailableError("the connection is lost");
    return;
  }
  endpoint_->Send({.connection = *peer_connection_,
                   .body = Request{.post = id,
                                   .transfer_id = post.params.transfer_id,
                                   .total_bytes = static_cast<uint64_t>(post.total_bytes),
                                   .window = post.params.window}});
}

absl::Status OutboundPeer::TakeGrant(const Grant& grant) {
  if (grant.slot >= slots_.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", grant.slot, " was granted; there are ", slots_.slots));
  }
  const auto found = posts_.find(grant.post);
  if (found == posts_.end() || found->second.ended.has_value()) {
    return absl::OkStatus();  // its Release gives the slot back
  }
  Post& post = found->second;
  if (post.run_index == post.params.runs.size()) {
    return absl::OkStatus();  // the last Written gives it back
  }
  Written written{.post = grant.post, .generation = grant.generation, .slot = grant.slot};
  const auto sources = TakePieces(post, written);
  ++post.open_writes;
  writer_->Write(std::move(written), sources, [this, id = grant.post](const absl::Status&) {
    --posts_.at(id).open_writes;  // a failure ends the connection
  });
  return absl::OkStatus();
}

std::vector<std::span<const std::byte>> OutboundPeer::TakePieces(Post& post,
                                                                 Written& written) const {
  const std::vector<SendRun>& runs = post.params.runs;
  std::vector<std::span<const std::byte>> sources;
  uint32_t used = 0;
  while (post.run_index < runs.size() && used < slots_.slot_bytes && sources.size() < kMaxPieces) {
    const SendRun& run = runs[post.run_index];
    const size_t size =
        std::min<size_t>(run.source.size() - post.position, slots_.slot_bytes - used);
    written.pieces.push_back({.offset = static_cast<uint64_t>(run.offset) + post.position,
                              .size = static_cast<uint32_t>(size)});
    sources.push_back(run.source.subspan(post.position, size));
    used += static_cast<uint32_t>(size);
    post.position += size;
    if (post.position == run.source.size()) {
      ++post.run_index;
      post.position = 0;
    }
  }
  written.last = post.run_index == runs.size();
  return sources;
}

absl::Status OutboundPeer::TakeVerdict(const Verdict& verdict) {
  unanswered_.erase(verdict.post);
  const auto found = posts_.find(verdict.post);
  if (found == posts_.end()) {
    return absl::OkStatus();  // it crossed the end of the post
  }
  Post& post = found->second;
  post.answered = true;
  if (post.ended.has_value()) {
    return absl::OkStatus();
  }
  if (verdict.code == 0 && post.run_index < post.params.runs.size()) {
    return absl::InvalidArgumentError("a transfer was called complete before its last byte");
  }
  post.ended = absl::Status(static_cast<absl::StatusCode>(verdict.code), verdict.message);
  return absl::OkStatus();
}

void OutboundPeer::Cancel(uint64_t tag, const absl::Status& reason) {
  const auto found = post_of_tag_.find(tag);
  if (found == post_of_tag_.end()) {
    return;
  }
  std::optional<absl::Status>& ended = posts_.at(found->second).ended;
  ended = ended.value_or(reason);
}

void OutboundPeer::CancelAll(const absl::Status& reason) {
  for (auto& [id, post] : posts_) {
    post.ended = post.ended.value_or(reason);
  }
}

absl::Time OutboundPeer::EndOverdue(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [id, post] : posts_) {
    if (!post.ended.has_value() && post.params.deadline <= now) {
      post.ended = absl::DeadlineExceededError("the peer did not take the bytes by the deadline");
    }
    if (!post.ended.has_value()) {
      next = std::min(next, post.params.deadline);
    }
  }
  Settle();
  if (IsStuck(now)) {
    Close(absl::UnavailableError("the peer does not answer"));
  }
  return posts_.empty() && unanswered_.empty() ? next : std::min(next, now + kStuck);
}

bool OutboundPeer::IsStuck(absl::Time now) const {
  const auto is_stuck = [&](const auto& entry) {
    return entry.second.ended.has_value() && now - endpoint_->last_progress() > kStuck;
  };
  const auto is_silent = [&](const auto& entry) {
    return now - std::max(entry.second, last_heard_) > kSilent;
  };
  return std::any_of(posts_.begin(), posts_.end(), is_stuck) ||
         std::any_of(unanswered_.begin(), unanswered_.end(), is_silent);
}

void OutboundPeer::Settle() {
  for (auto post = posts_.begin(); post != posts_.end();) {
    if (post->second.ended.has_value() && post->second.open_writes == 0) {
      if (!post->second.ended->ok() && !closed_ && welcomed()) {
        if (!post->second.answered) {
          unanswered_.emplace(post->first, absl::Now());
        }
        endpoint_->Send({.connection = *peer_connection_, .body = Release{.post = post->first}});
      }
      post->second.completed(Completion{.kind = CompletionKind::kSent,
                                        .tag = post->second.params.tag,
                                        .status = *post->second.ended,
                                        .bytes = post->second.total_bytes});
      post = posts_.erase(post);
    } else {
      ++post;
    }
  }
}

void OutboundPeer::Close(const absl::Status& reason) {
  if (closed_) {
    return;
  }
  closed_ = true;
  unanswered_.clear();
  CancelAll(reason);
  endpoint_->Close();
}

}  // namespace baton::transport::ucx
