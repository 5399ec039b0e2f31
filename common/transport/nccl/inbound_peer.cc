#include "common/transport/nccl/inbound_peer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/inbound_window.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/link_sizes.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/window_table.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {
namespace {

using kernels::DeviceLink;
using worker::v1::LinkMessage;

constexpr auto kMaxOffset = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Bytes of a chunk; kInvalidArgument when they are not what a chunk may have.
absl::StatusOr<size_t> SizeOf(const worker::v1::LinkChunk& chunk, size_t slot_bytes) {
  const size_t most = chunk.carried().empty() ? slot_bytes : kMaxCarriedBytes;
  size_t size = 0;
  for (const worker::v1::LinkPiece& piece : chunk.pieces()) {
    if (piece.size() == 0 || piece.size() > most - size || piece.offset() > kMaxOffset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a piece of ", piece.size(), " bytes at ", piece.offset(), " in a chunk of ", most));
    }
    size += piece.size();
  }
  if (size == 0 || chunk.pieces_size() > kMaxPieces ||
      (!chunk.carried().empty() && chunk.carried().size() != size)) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ",
                                                   chunk.pieces_size(),
                                                   " pieces of ",
                                                   size,
                                                   " bytes with ",
                                                   chunk.carried().size()));
  }
  return size;
}

}  // namespace

InboundPeer::InboundPeer(std::shared_ptr<Pipe> pipe,
                         std::shared_ptr<WindowTable> windows,
                         kernels::DeviceLinks& links,
                         kernels::LandingMemory& memory,
                         BlockBudget& budget,
                         OnReady on_ready)
    : pipe_(std::move(pipe)),
      windows_(std::move(windows)),
      links_(links),
      memory_(memory),
      on_ready_(std::move(on_ready)),
      since_(absl::Now()),
      share_(budget) {
  pipe_->Read();
}

InboundPeer::~InboundPeer() {
  pipe_->Close();
  for (auto& [id, post] : posts_) {
    post.window->Abandon(
        post.transfer_id, &post, absl::UnavailableError("the sender's connection has ended"));
  }
}

absl::Status InboundPeer::Take(const LinkMessage& message) {
  heard_ = absl::Now();
  BATON_RETURN_IF_ERROR(Handle(message));
  pipe_->Read();
  return absl::OkStatus();
}

absl::Status InboundPeer::Handle(const LinkMessage& message) {
  if ((link_ == nullptr) != message.has_hello()) {
    return absl::InvalidArgumentError("a hello comes first, and once");
  }
  switch (message.message_case()) {
    case LinkMessage::kHello:
      return TakeHello(message.hello());
    case LinkMessage::kRequest:
      return TakeRequest(message.request());
    case LinkMessage::kChunk:
      return TakeChunk(message.chunk());
    case LinkMessage::kRelease:
      return TakeRelease(message.release());
    default:
      return absl::InvalidArgumentError("a message that senders don't send");
  }
}

absl::Status InboundPeer::TakeHello(const worker::v1::LinkHello& hello) {
  if (hello.version() != kLinkVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer speaks version ", hello.version(), ", not ", kLinkVersion));
  }
  if (hello.slot_bytes() == 0 || hello.slot_bytes() > kMaxSlotBytes || hello.max_blocks() == 0 ||
      hello.max_blocks() > kMaxBlocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slots of ", hello.slot_bytes(), " bytes and ", hello.max_blocks(), " thread blocks"));
  }
  sizes_ = {.slot_bytes = hello.slot_bytes(),
            .max_blocks = static_cast<int32_t>(hello.max_blocks())};
  BATON_ASSIGN_OR_RETURN(link_, links_.Open(hello.id(), kernels::LinkEnd::kReceiver, sizes_));
  return absl::OkStatus();
}

absl::Status InboundPeer::TakeRequest(const worker::v1::LinkRequest& request) {
  if (request.total_bytes() > kMaxOffset) {
    return absl::InvalidArgumentError("a transfer of more than 2^63 bytes");
  }
  std::shared_ptr<InboundWindow> window = windows_->Find(request.window());
  if (window == nullptr || posts_.size() >= kMaxPosts) {
    Answer(request.post(),
           window == nullptr ? absl::FailedPreconditionError("the window is unknown or withdrawn")
                             : absl::ResourceExhaustedError(
                                   absl::StrCat(kMaxPosts, " transfers of this peer are open")));
    return absl::OkStatus();
  }
  const auto [found, is_new] = posts_.try_emplace(request.post());
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("post ", request.post(), " was requested twice"));
  }
  Post& post = found->second;
  post.window = std::move(window);
  post.transfer_id = request.transfer_id();
  post.total_bytes = static_cast<int64_t>(request.total_bytes());
  post.window->Claim(
      post.transfer_id, &post, [on_ready = on_ready_, id = request.post()](absl::Status verdict) {
        on_ready(id, std::move(verdict));
      });
  return absl::OkStatus();
}

void InboundPeer::Ready(uint64_t id, const absl::Status& verdict) {
  const auto found = posts_.find(id);
  if (found == posts_.end() || found->second.open) {
    return;  // given up meanwhile
  }
  if (!verdict.ok()) {
    End(id, verdict);
    return;
  }
  found->second.open = true;
  LinkMessage message;
  message.mutable_ready()->set_post(id);
  pipe_->Send(std::move(message));
}

absl::Status InboundPeer::TakeChunk(const worker::v1::LinkChunk& told) {
  const auto post = posts_.find(told.post());
  if (!up_ || chunks_.size() >= kMaxChunks || (post != posts_.end() && !post->second.open)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of post ", told.post(), " before its time"));
  }
  BATON_ASSIGN_OR_RETURN(const size_t size, SizeOf(told, sizes_.slot_bytes));
  Chunk& chunk = chunks_.emplace_back(Chunk{.told = told, .size = size});
  if (told.carried().empty()) {
    chunk.slot = next_slot_++ % DeviceLink::kSlots;
  }
  return absl::OkStatus();
}

absl::Status InboundPeer::TakeRelease(const worker::v1::LinkRelease& release) {
  if (posts_.contains(release.post())) {
    End(release.post(), absl::CancelledError("the sender gave the transfer up"));
  }
  return absl::OkStatus();
}

absl::Status InboundPeer::Advance(absl::Time now) {
  if (link_ == nullptr) {
    return absl::OkStatus();
  }
  if (!up_) {
    BATON_ASSIGN_OR_RETURN(up_, link_->Connected());
    if (!up_) {
      return absl::OkStatus();
    }
    LinkMessage message;
    message.mutable_up();
    pipe_->Send(std::move(message));
  }
  for (;;) {
    BATON_RETURN_IF_ERROR(GoOn(now));
    BATON_ASSIGN_OR_RETURN(const bool ended, EndOldest(now));
    if (!ended) {
      return absl::OkStatus();
    }
  }
}

absl::Status InboundPeer::GoOn(absl::Time now) {
  if (chunks_.empty()) {
    share_.GiveBack();
    return absl::OkStatus();
  }
  if (!share_.Take(sizes_.max_blocks)) {
    return absl::OkStatus();
  }
  // So many have slots of their own.
  for (size_t i = 0; i < std::min(chunks_.size(), DeviceLink::kSlots); ++i) {
    Chunk& chunk = chunks_[i];
    if (!chunk.told.carried().empty()) {
      break;
    }
    if (!chunk.going) {
      chunk.going = true;
      chunk.since = now;
      BATON_RETURN_IF_ERROR(link_->Receive(chunk.slot, chunk.size));
      SayGo();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> InboundPeer::EndOldest(absl::Time now) {
  if (chunks_.empty()) {
    return false;
  }
  const Chunk& chunk = chunks_.front();
  if (chunk.told.carried().empty()) {
    if (!chunk.going) {
      return false;  // others hold the GPU
    }
    BATON_ASSIGN_OR_RETURN(const bool idle, link_->Idle(chunk.slot));
    if (!idle && now - chunk.since > kStuck) {
      return absl::UnavailableError("the peer does not send what it said it would");
    }
    if (!idle) {
      return false;
    }
  } else {
    SayGo();
  }
  Land(chunk);
  chunks_.pop_front();
  return true;
}

void InboundPeer::Land(const Chunk& chunk) {
  const auto found = posts_.find(chunk.told.post());
  if (found == posts_.end()) {
    return;  // it crossed the verdict
  }
  const Post& post = found->second;
  absl::Status status = Copy(post, chunk);
  if (status.ok() && chunk.told.last()) {
    status = post.window->Finish(post.transfer_id, &post, post.total_bytes);
  }
  if (!status.ok() || chunk.told.last()) {
    End(chunk.told.post(), status);
  }
}

absl::Status InboundPeer::Copy(const Post& post, const Chunk& chunk) {
  const std::string& carried = chunk.told.carried();
  std::span<const std::byte> bytes = carried.empty() ? link_->slot(chunk.slot).first(chunk.size)
                                                     : std::as_bytes(std::span(carried));
  for (const worker::v1::LinkPiece& piece : chunk.told.pieces()) {
    const auto offset = static_cast<int64_t>(piece.offset());
    const std::span<const std::byte> source = bytes.first(piece.size());
    BATON_RETURN_IF_ERROR(carried.empty()
                              ? post.window->Pull(post.transfer_id, &post, offset, source)
                              : post.window->Write(post.transfer_id, &post, offset, source));
    bytes = bytes.subspan(piece.size());
  }
  // The slot is free for the next chunk.
  return carried.empty() ? memory_.Wait() : absl::OkStatus();
}

void InboundPeer::End(uint64_t id, const absl::Status& verdict) {
  const auto found = posts_.find(id);
  Post& post = found->second;
  if (!verdict.ok()) {
    post.window->Abandon(post.transfer_id, &post, verdict);
  }
  posts_.erase(found);
  Answer(id, verdict);
}

void InboundPeer::Answer(uint64_t id, const absl::Status& verdict) {
  LinkMessage message;
  worker::v1::LinkVerdict& answer = *message.mutable_verdict();
  answer.set_post(id);
  answer.set_code(static_cast<int32_t>(verdict.code()));
  answer.set_message(std::string(verdict.message()));
  pipe_->Send(std::move(message));
}

void InboundPeer::SayGo() {
  LinkMessage message;
  message.mutable_go();
  pipe_->Send(std::move(message));
}

}  // namespace baton::transport::nccl
