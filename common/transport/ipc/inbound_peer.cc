#include "common/transport/ipc/inbound_peer.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/inbound_window.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/message.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

InboundPeer::InboundPeer(Descriptor socket,
                         std::shared_ptr<WindowTable> windows,
                         kernels::LandingMemory* device,
                         OnReady on_ready)
    : windows_(std::move(windows)),
      device_(device),
      on_ready_(std::move(on_ready)),
      since_(absl::Now()),
      channel_(std::move(socket)) {}

InboundPeer::~InboundPeer() {
  for (auto& [id, post] : posts_) {
    post.window->Abandon(
        post.transfer_id, &post, absl::UnavailableError("the sender's connection has ended"));
  }
}

absl::Status InboundPeer::Advance() {
  const std::optional<Channel::Received> received = channel_.Receive();
  if (!received.has_value()) {
    return channel_.status();
  }
  if (!introduced_ && !std::holds_alternative<Hello>(received->message)) {
    return absl::InvalidArgumentError("a message came before Hello");
  }
  return std::visit([&](const auto& body) { return Take(body, received->attached); },
                    received->message);
}

absl::Status InboundPeer::Take(const Hello& /*hello*/, const Descriptor& /*attached*/) {
  BATON_ASSIGN_OR_RETURN(const unsigned user, channel_.peer_user());
  if (user != geteuid() && user != 0) {
    return absl::PermissionDeniedError(absl::StrCat("the peer runs as user ", user));
  }
  if (introduced_) {
    return absl::InvalidArgumentError("a second Hello");
  }
  introduced_ = true;
  channel_.Send(Welcome{.imports_devices = device_ != nullptr});
  return absl::OkStatus();
}

absl::Status InboundPeer::Take(const Export& exported, const Descriptor& attached) {
  if (blocks_.size() >= kMaxBlocks || blocks_.contains(exported.block)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "block ", exported.block, " was exported twice, or more than ", kMaxBlocks, " blocks"));
  }
  absl::StatusOr<std::unique_ptr<kernels::SharedMapping>> mapping = Map(exported, attached.get());
  Imported imported = {.block = exported.block};
  if (mapping.ok()) {
    blocks_.emplace(exported.block,
                    Block{.mapping = *std::move(mapping), .of_device = exported.of_device});
  } else {
    imported.code = static_cast<uint8_t>(mapping.status().code());
    imported.message = std::string(mapping.status().message());
  }
  channel_.Send(imported);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<kernels::SharedMapping>> InboundPeer::Map(const Export& exported,
                                                                         int fd) const {
  kernels::LandingMemory* const memory = exported.of_device ? device_ : &kernels::HostLanding();
  if (memory == nullptr) {
    return absl::UnimplementedError("this worker maps no memory of devices");
  }
  return memory->Import(fd, exported.size);
}

absl::Status InboundPeer::Take(const Request& request, const Descriptor& /*attached*/) {
  std::shared_ptr<InboundWindow> window = windows_->Find(request.window);
  if (window == nullptr || posts_.size() >= kMaxPosts) {
    const absl::Status verdict =
        window == nullptr ? absl::FailedPreconditionError("the window is unknown or withdrawn")
                          : absl::ResourceExhaustedError(
                                absl::StrCat(kMaxPosts, " transfers of this peer are open"));
    Answer(request.post, verdict);
    return absl::OkStatus();
  }
  const auto [found, is_new] = posts_.try_emplace(request.post);
  if (!is_new) {
    return absl::InvalidArgumentError(absl::StrCat("post ", request.post, " was requested twice"));
  }
  Post& post = found->second;
  post.window = std::move(window);
  post.transfer_id = request.transfer_id;
  post.total_bytes = static_cast<int64_t>(request.total_bytes);
  post.pieces = request.pieces;
  post.window->Claim(
      post.transfer_id, &post, [on_ready = on_ready_, id = request.post](absl::Status verdict) {
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
  Post& post = found->second;
  post.open = true;
  if (post.pieces.empty()) {
    channel_.Send(ipc::Ready{.post = id});
  } else {
    TakePieces(post, {.post = id, .last = true, .pieces = std::move(post.pieces)});
  }
}

absl::Status InboundPeer::Take(const Written& written, const Descriptor& /*attached*/) {
  const auto found = posts_.find(written.post);
  if (found == posts_.end()) {
    return absl::OkStatus();  // it crossed the verdict
  }
  if (!found->second.open) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces of post ", written.post, ", which was not called ready"));
  }
  TakePieces(found->second, written);
  return absl::OkStatus();
}

void InboundPeer::TakePieces(const Post& post, const Written& written) {
  absl::Status status = Copy(post, written);
  if (status.ok() && written.last) {
    status = post.window->Finish(post.transfer_id, &post, post.total_bytes);
  }
  if (!status.ok() || written.last) {
    End(written.post, status);
  }
}

absl::Status InboundPeer::Copy(const Post& post, const Written& written) const {
  auto carried = std::as_bytes(std::span(written.bytes.data(), written.bytes.size()));
  for (const Piece& piece : written.pieces) {
    if (piece.block != 0) {
      BATON_RETURN_IF_ERROR(CopyPiece(post, piece));
      continue;
    }
    BATON_RETURN_IF_ERROR(post.window->Write(
        post.transfer_id, &post, static_cast<int64_t>(piece.offset), carried.first(piece.size)));
    carried = carried.subspan(piece.size);
  }
  return absl::OkStatus();
}

absl::Status InboundPeer::CopyPiece(const Post& post, const Piece& piece) const {
  const auto found = blocks_.find(piece.block);
  if (found == blocks_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece lies in block ", piece.block, ", which was not exported"));
  }
  const Block& block = found->second;
  std::span<const std::byte> bytes = block.mapping->bytes();
  if (piece.source > bytes.size() || piece.size > bytes.size() - piece.source) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of ", piece.size, " bytes at ", piece.source, " of a block of ", bytes.size()));
  }
  bytes = bytes.subspan(piece.source, piece.size);
  const auto offset = static_cast<int64_t>(piece.offset);
  return block.of_device ? post.window->Pull(post.transfer_id, &post, offset, bytes)
                         : post.window->Write(post.transfer_id, &post, offset, bytes);
}

absl::Status InboundPeer::Take(const Release& release, const Descriptor& /*attached*/) {
  if (posts_.contains(release.post)) {
    End(release.post, absl::CancelledError("the sender gave the transfer up"));
  }
  return absl::OkStatus();
}

template <typename Body>
absl::Status InboundPeer::Take(const Body& /*body*/, const Descriptor& /*attached*/) {
  return absl::InvalidArgumentError("a message that only receivers send");
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
  channel_.Send(Verdict{.post = id,
                        .code = static_cast<uint8_t>(verdict.code()),
                        .message = std::string(verdict.message())});
}

}  // namespace baton::transport::ipc
