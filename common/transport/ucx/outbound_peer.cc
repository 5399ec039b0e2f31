#include "common/transport/ucx/outbound_peer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {
namespace {

constexpr uint32_t kMinSlotBytes = 4096;
// UCX reads a packed key without knowing its size: at most 64 parts of up to 256 bytes and a head.
// It finds zeros behind a key that is cut or made up.
constexpr size_t kMostReadOfKey = size_t{1} << 15;

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

OutboundPeer::~OutboundPeer() {
  Close(absl::CancelledError("the connection was closed"));
  if (rkey_ != nullptr) {
    ucp_rkey_destroy(rkey_);  // no put uses it any more
  }
}

absl::Status OutboundPeer::Take(const Message& message) {
  if (closed_) {
    return absl::OkStatus();
  }
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
  std::string key = welcome.rkey;
  key.resize(kMostReadOfKey);
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_ep_rkey_unpack(endpoint_->handle(), key.data(), &rkey_), "the peer's key"));
  slots_ = welcome;
  peer_connection_ = welcome.connection;
  return absl::OkStatus();
}

void OutboundPeer::Start(PostParams params) {
  const uint64_t id = next_post_++;
  post_of_tag_.emplace(params.tag, id);
  Post& post = posts_[id];
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
  auto filled = std::make_shared<Filled>();
  filled->written = {.post = grant.post, .generation = grant.generation, .slot = grant.slot};
  post.filled.push_back(filled);
  PutInto(grant.post, post, *filled);
  ++post.open_operations;
  endpoint_->Flush([this, id = grant.post, filled](const absl::Status& status) {
    Post& flushed = posts_.at(id);
    --flushed.open_operations;
    filled->arrived = status.ok();
    SayWritten(flushed);
  });
  return absl::OkStatus();
}

void OutboundPeer::PutInto(uint64_t id, Post& post, Filled& filled) {
  const std::vector<SendRun>& runs = post.params.runs;
  const uint64_t address = slots_.base + uint64_t{slots_.slot_bytes} * filled.written.slot;
  uint32_t used = 0;
  while (post.run_index < runs.size() && used < slots_.slot_bytes &&
         filled.written.pieces.size() < kMaxPieces) {
    const SendRun& run = runs[post.run_index];
    const size_t size =
        std::min<size_t>(run.source.size() - post.position, slots_.slot_bytes - used);
    filled.written.pieces.push_back({.offset = static_cast<uint64_t>(run.offset) + post.position,
                                     .size = static_cast<uint32_t>(size)});
    ++post.open_operations;
    endpoint_->Put(run.source.subspan(post.position, size),
                   address + used,
                   rkey_,
                   [this, id](const absl::Status&) { --posts_.at(id).open_operations; });
    used += static_cast<uint32_t>(size);
    post.position += size;
    if (post.position == run.source.size()) {
      ++post.run_index;
      post.position = 0;
    }
  }
  filled.written.last = post.run_index == runs.size();
}

void OutboundPeer::SayWritten(Post& post) {
  while (!post.ended.has_value() && !post.filled.empty() && post.filled.front()->arrived) {
    post.last_said = post.filled.front()->written.last;
    endpoint_->Send(
        {.connection = *peer_connection_, .body = std::move(post.filled.front()->written)});
    post.filled.pop_front();
  }
}

absl::Status OutboundPeer::TakeVerdict(const Verdict& verdict) {
  const auto found = posts_.find(verdict.post);
  if (found == posts_.end() || found->second.ended.has_value()) {
    return absl::OkStatus();  // it crossed the end of the post
  }
  Post& post = found->second;
  if (verdict.code == 0 && !post.last_said) {
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
  bool waits_for_puts = false;
  for (auto& [id, post] : posts_) {
    if (!post.ended.has_value() && post.params.deadline <= now) {
      post.ended = absl::DeadlineExceededError("the peer did not take the bytes by the deadline");
    }
    waits_for_puts = waits_for_puts || post.ended.has_value();
    next = std::min(next, post.ended.has_value() ? now + kStuck : post.params.deadline);
  }
  Settle();
  waits_for_puts = waits_for_puts && !posts_.empty();
  if (waits_for_puts && now - endpoint_->last_progress() > kStuck) {
    Close(absl::UnavailableError("the peer takes no bytes any more"));
  }
  return next;
}

void OutboundPeer::Settle() {
  for (auto post = posts_.begin(); post != posts_.end();) {
    if (post->second.ended.has_value() && post->second.open_operations == 0) {
      if (!post->second.ended->ok() && !closed_ && welcomed()) {
        endpoint_->Send({.connection = *peer_connection_, .body = Release{.post = post->first}});
      }
      Complete(post->second);
      post = posts_.erase(post);
    } else {
      ++post;
    }
  }
}

void OutboundPeer::Complete(Post& post) {
  post_of_tag_.erase(post.params.tag);
  completed_(Completion{.kind = CompletionKind::kSent,
                        .tag = post.params.tag,
                        .status = *post.ended,
                        .bytes = post.total_bytes});
}

void OutboundPeer::Close(const absl::Status& reason) {
  if (closed_) {
    return;
  }
  closed_ = true;
  CancelAll(reason);
  endpoint_->Close();
}

}  // namespace baton::transport::ucx
