#include "common/transport/ucx/inbound_peer.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/landing_slots.h"
#include "common/transport/ucx/message.h"
#include "common/transport/window_table.h"

namespace baton::transport::ucx {

InboundPeer::InboundPeer(uint64_t connection,
                         std::unique_ptr<Endpoint> endpoint,
                         std::shared_ptr<WindowTable> windows,
                         OnReady on_ready)
    : connection_(connection),
      endpoint_(std::move(endpoint)),
      windows_(std::move(windows)),
      on_ready_(std::move(on_ready)),
      since_(absl::Now()) {}

InboundPeer::~InboundPeer() { Close(absl::UnavailableError("the connection was closed")); }

void InboundPeer::Welcome(const Hello& hello, std::unique_ptr<LandingSlots> slots) {
  peer_connection_ = hello.connection;
  slots_ = std::move(slots);
  endpoint_->Send({.connection = peer_connection_,
                   .body = ucx::Welcome{.connection = connection_,
                                        .base = slots_->base(),
                                        .slot_bytes = slots_->slot_bytes(),
                                        .slots = slots_->slots(),
                                        .rkey = slots_->rkey()}});
}

void InboundPeer::Refuse(const Hello& hello, const absl::Status& reason) {
  endpoint_->Send({.connection = hello.connection,
                   .body = Verdict{.post = 0,
                                   .code = static_cast<uint8_t>(reason.code()),
                                   .message = std::string(reason.message())}});
}

absl::Status InboundPeer::Take(const Message& message) {
  if (ended_) {
    return absl::OkStatus();
  }
  if (!welcomed()) {
    return absl::InvalidArgumentError("a message came before Hello");
  }
  if (const auto* request = std::get_if<Request>(&message.body)) {
    return TakeRequest(*request);
  }
  if (const auto* written = std::get_if<Written>(&message.body)) {
    return TakeWritten(*written);
  }
  if (const auto* release = std::get_if<Release>(&message.body)) {
    TakeRelease(*release);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a message that only receivers send");
}

absl::Status InboundPeer::TakeRequest(const Request& request) {
  const auto [found, is_new] = posts_.try_emplace(request.post);
  if (!is_new) {
    return absl::InvalidArgumentError(absl::StrCat("post ", request.post, " was requested twice"));
  }
  Post& post = found->second;
  post.transfer_id = request.transfer_id;
  post.total_bytes = static_cast<int64_t>(request.total_bytes);
  if (posts_.size() > kMaxPosts) {
    End(request.post,
        absl::ResourceExhaustedError(absl::StrCat(kMaxPosts, " transfers of this peer are open")));
    return absl::OkStatus();
  }
  if (request.window.empty()) {
    Ready(request.post, absl::OkStatus());
    return absl::OkStatus();
  }
  post.window = windows_->Find(request.window);
  if (post.window == nullptr) {
    End(request.post, absl::FailedPreconditionError("the window is unknown or withdrawn"));
    return absl::OkStatus();
  }
  post.window->Claim(post.transfer_id,
                     &post,
                     [on_ready = on_ready_, connection = connection_, id = request.post](
                         absl::Status verdict) { on_ready(connection, id, std::move(verdict)); });
  return absl::OkStatus();
}

absl::Status InboundPeer::Post::Write(int64_t offset, std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (window != nullptr) {
    BATON_RETURN_IF_ERROR(window->Write(transfer_id, this, offset, bytes));
  } else if (size > total_bytes - written_bytes) {
    return absl::InvalidArgumentError("a probe has more bytes than were requested");
  }
  written_bytes += size;
  return absl::OkStatus();
}

absl::Status InboundPeer::Post::Finish() {
  if (window != nullptr) {
    return window->Finish(transfer_id, this, total_bytes);
  }
  return written_bytes == total_bytes
             ? absl::OkStatus()
             : absl::InvalidArgumentError("a probe has fewer bytes than were requested");
}

bool InboundPeer::Post::given_up() const {
  return window != nullptr && !window->IsOpen(transfer_id, this);
}

void InboundPeer::Ready(uint64_t id, const absl::Status& verdict) {
  const auto found = posts_.find(id);
  if (found == posts_.end() || found->second.ended() || found->second.open) {
    return;  // given up meanwhile
  }
  if (!verdict.ok()) {
    End(id, verdict);
    return;
  }
  found->second.open = true;
  Enqueue(id, found->second);
  GrantSlots();
}

bool InboundPeer::WantsSlot(const Post& post) const {
  const int64_t in_slots = static_cast<int64_t>(post.held.size()) * slots_->slot_bytes();
  return post.open && !post.ended() && in_slots < kMaxHeldBytes &&
         post.total_bytes - post.written_bytes > in_slots;
}

void InboundPeer::Enqueue(uint64_t id, Post& post) {
  if (!post.queued && WantsSlot(post)) {
    post.queued = true;
    waiting_.push_back(id);
  }
}

void InboundPeer::GrantSlots() {
  while (slots_->free() > 0 && !waiting_.empty()) {
    const uint64_t id = waiting_.front();
    waiting_.pop_front();
    Post& post = posts_.at(id);
    post.queued = false;
    if (!WantsSlot(post)) {
      continue;
    }
    const LandingSlots::Granted granted = *slots_->Take();
    post.held.push_back(granted);
    endpoint_->Send(
        {.connection = peer_connection_,
         .body = Grant{.post = id, .generation = granted.generation, .slot = granted.slot}});
    Enqueue(id, post);
  }
}

absl::Status InboundPeer::TakeWritten(const Written& written) {
  const auto found = posts_.find(written.post);
  if (found == posts_.end() && !slots_->has_memory()) {
    return absl::OkStatus();  // it crossed the end of the transfer
  }
  const LandingSlots::Granted slot{.slot = written.slot, .generation = written.generation};
  if (found == posts_.end() || std::erase(found->second.held, slot) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", written.slot, " is not granted to post ", written.post));
  }
  Post& post = found->second;
  absl::Status copied = post.ended() ? absl::OkStatus() : Copy(post, written);
  slots_->Return(slot);
  if (written.last) {
    ReturnSlots(post);
    if (!post.ended() && copied.ok()) {
      copied = post.Finish();
    }
  }
  if (post.ended()) {
    if (post.held.empty()) {
      Forget(written.post);
    }
  } else if (!copied.ok() || written.last) {
    End(written.post, copied);
  } else {
    Enqueue(written.post, post);
  }
  GrantSlots();
  return absl::OkStatus();
}

std::span<const std::byte> InboundPeer::BytesOf(const Written& written) const {
  if (slots_->has_memory()) {
    return written.bytes.empty() ? slots_->bytes(written.slot) : std::span<const std::byte>();
  }
  const auto bytes = std::as_bytes(std::span(written.bytes.data(), written.bytes.size()));
  return bytes.first(std::min<size_t>(bytes.size(), slots_->slot_bytes()));
}

absl::Status InboundPeer::Copy(Post& post, const Written& written) {
  std::span<const std::byte> rest = BytesOf(written);
  for (const Piece& piece : written.pieces) {
    if (piece.size > rest.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pieces for a slot of ",
                       slots_->slot_bytes(),
                       " bytes have more bytes than were written to it"));
    }
    BATON_RETURN_IF_ERROR(post.Write(static_cast<int64_t>(piece.offset), rest.first(piece.size)));
    rest = rest.subspan(piece.size);
  }
  return absl::OkStatus();
}

void InboundPeer::End(uint64_t id, const absl::Status& verdict) {
  const auto found = posts_.find(id);
  Post& post = found->second;
  if (!verdict.ok() && post.window != nullptr) {
    post.window->Abandon(post.transfer_id, &post, verdict);
  }
  post.ended_at = absl::Now();
  endpoint_->Send({.connection = peer_connection_,
                   .body = Verdict{.post = id,
                                   .code = static_cast<uint8_t>(verdict.code()),
                                   .message = std::string(verdict.message())}});
  if (!slots_->has_memory()) {
    ReturnSlots(post);
  }
  if (post.held.empty()) {
    Forget(id);
  }
}

void InboundPeer::Forget(uint64_t id) {
  const auto found = posts_.find(id);
  if (found->second.queued) {
    std::erase(waiting_, id);
  }
  posts_.erase(found);
}

void InboundPeer::TakeRelease(const Release& release) {
  auto found = posts_.find(release.post);
  if (found != posts_.end() && !found->second.ended()) {
    End(release.post, absl::UnavailableError("the sender gave the transfer up"));
    found = posts_.find(release.post);
  }
  if (found != posts_.end()) {
    ReturnSlots(found->second);
    Forget(release.post);
  }
  GrantSlots();
}

void InboundPeer::ReturnSlots(Post& post) {
  for (const LandingSlots::Granted& granted : post.held) {
    slots_->Return(granted);
  }
  post.held.clear();
}

void InboundPeer::Close(const absl::Status& reason) {
  if (ended_) {
    return;
  }
  ended_ = true;
  for (auto& [id, post] : posts_) {
    if (!post.ended() && post.window != nullptr) {
      post.window->Abandon(post.transfer_id, &post, reason);
    }
    if (welcomed() && !slots_->has_memory()) {
      ReturnSlots(post);
    }
    post.ended_at = std::min(post.ended_at, absl::Now());
  }
  endpoint_->Close();
}

size_t InboundPeer::granted_slots() const {
  return welcomed() ? slots_->slots() - slots_->free() : 0;
}

int64_t InboundPeer::memory_bytes() const {
  return welcomed() && slots_->has_memory() ? int64_t{slots_->slot_bytes()} * slots_->slots() : 0;
}

void InboundPeer::EndGivenUp() {
  std::vector<uint64_t> given_up;
  for (const auto& [id, post] : posts_) {
    if (post.open && !post.ended() && post.given_up()) {
      given_up.push_back(id);
    }
  }
  for (const uint64_t id : given_up) {
    End(id, absl::FailedPreconditionError("the receiver gave the transfer up"));
  }
  if (!given_up.empty()) {
    GrantSlots();
  }
}

size_t InboundPeer::quarantined_slots() const {
  size_t quarantined = 0;
  for (const auto& [id, post] : posts_) {
    quarantined += post.ended() ? post.held.size() : 0;
  }
  return quarantined;
}

absl::Time InboundPeer::quarantined_since() const {
  absl::Time since = absl::InfiniteFuture();
  for (const auto& [id, post] : posts_) {
    since = std::min(since, post.ended_at);  // ended posts are here only for their slots
  }
  return since;
}

}  // namespace baton::transport::ucx
