#include "common/transport/ipc/outbound_peer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/message.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/transport.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

OutboundPeer::OutboundPeer(Descriptor socket, OutboundPosts::OnCompletion completed)
    : completed_(std::move(completed)),
      since_(absl::Now()),
      channel_(std::move(socket)),
      posts_(completed_, [this](uint64_t id) { channel_.Send(Release{.post = id}); }) {
  channel_.Send(Hello{});
}

OutboundPeer::~OutboundPeer() { Close(absl::CancelledError("the connection was closed")); }

void OutboundPeer::Start(PostParams params) {
  if (absl::Status status = CheckSources(params); !status.ok()) {
    completed_(
        Completion{.kind = CompletionKind::kSent, .tag = params.tag, .status = std::move(status)});
    return;
  }
  auto [id, post] = posts_.Start(std::move(params));
  channel_.Send(Request{.post = id,
                        .transfer_id = post.params.transfer_id,
                        .total_bytes = static_cast<uint64_t>(post.total_bytes),
                        .window = post.params.window,
                        .pieces = AllPieces(id, post)});
}

std::vector<Piece> OutboundPeer::AllPieces(uint64_t id, OutboundPosts::Post& post) {
  const bool in_blocks = std::ranges::all_of(post.params.runs, [this](const SendRun& run) {
    uint64_t source = 0;
    return BlockOf(run.source, source) != 0;
  });
  if (!in_blocks) {
    return {};  // and nothing is read of it before the receiver asks
  }
  Written written = NextPieces(id, post);
  if (written.last && written.pieces.size() <= kMaxRequestPieces) {
    return std::move(written.pieces);
  }
  post.run_index = 0;
  post.position = 0;
  return {};
}

absl::Status OutboundPeer::Advance() {
  while (std::optional<Channel::Received> received = channel_.Receive()) {
    BATON_RETURN_IF_ERROR(Take(received->message));
  }
  channel_.Flush();
  while (channel_.idle() && channel_.status().ok() && posts_.has_ready()) {
    TellPieces();
  }
  return channel_.status();
}

absl::Status OutboundPeer::Take(const Message& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    return TakeWelcome(*welcome);
  }
  if (const auto* imported = std::get_if<Imported>(&message)) {
    return TakeImported(*imported);
  }
  if (const auto* verdict = std::get_if<Verdict>(&message)) {
    return posts_.TakeVerdict(verdict->post, verdict->code, verdict->message);
  }
  if (const auto* ready = std::get_if<Ready>(&message)) {
    return posts_.MakeReady(ready->post);
  }
  return absl::InvalidArgumentError("a message that only senders send");
}

absl::Status OutboundPeer::TakeWelcome(const Welcome& welcome) {
  if (welcomed_) {
    return absl::InvalidArgumentError("a second Welcome");
  }
  welcomed_ = true;
  ExportAll(kernels::BlockKind::kHost);
  if (welcome.imports_devices) {
    ExportAll(kernels::BlockKind::kDevice);
    reads_devices_ = true;  // until an answer says otherwise
  }
  return absl::OkStatus();
}

void OutboundPeer::ExportAll(kernels::BlockKind kind) {
  for (const auto& block : kernels::SharedBlocks(kind)) {
    ExportBlock(block);
  }
}

void OutboundPeer::ExportBlock(const std::shared_ptr<const kernels::SharedBlock>& block) {
  const bool of_device = block->kind() == kernels::BlockKind::kDevice;
  if (exported_.size() >= kMaxBlocks) {
    reads_devices_ = reads_devices_ && !of_device;
    return;
  }
  if (exported_.emplace(block->id(), block).second) {
    ++unanswered_;
    channel_.Send(Export{.block = block->id(), .size = block->size(), .of_device = of_device},
                  block);
  }
}

absl::Status OutboundPeer::TakeImported(const Imported& imported) {
  const auto found = exported_.find(imported.block);
  if (found == exported_.end() || found->second == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("block ", imported.block, " was answered that was not exported, or twice"));
  }
  --unanswered_;
  if (imported.code == 0) {
    imported_.emplace(imported.block, found->second->kind());
  } else if (found->second->kind() == kernels::BlockKind::kDevice) {
    reads_devices_ = false;
  }
  found->second = nullptr;
  return absl::OkStatus();
}

absl::Status OutboundPeer::CheckSources(const PostParams& params) const {
  for (const SendRun& run : params.runs) {
    const std::optional<kernels::SharedLocation> location = kernels::FindShared(run.source);
    if (location.has_value() && location->block->kind() == kernels::BlockKind::kDevice &&
        !imported_.contains(location->block->id())) {
      return absl::FailedPreconditionError("the peer can't read this worker's device");
    }
  }
  return absl::OkStatus();
}

void OutboundPeer::TellPieces() {
  auto [id, post] = posts_.TakeReady();
  const Written written = NextPieces(id, post);
  if (!written.last) {
    posts_.PutBack(id);
  }
  channel_.Send(written);
}

Written OutboundPeer::NextPieces(uint64_t id, OutboundPosts::Post& post) {
  Written written = {.post = id};
  uint64_t pointed = 0;
  while (!post.told() && written.pieces.size() < kMaxPieces && pointed < kPointedBytes &&
         written.bytes.size() < kMaxCarriedBytes) {
    std::span<const std::byte> bytes = post.bytes();
    Piece piece = {.offset = static_cast<uint64_t>(post.offset())};
    piece.block = BlockOf(bytes, piece.source);
    const bool of_device =
        piece.block != 0 && imported_.at(piece.block) == kernels::BlockKind::kDevice;
    if (!of_device) {
      const uint64_t room =
          piece.block == 0 ? kMaxCarriedBytes - written.bytes.size() : kPointedBytes - pointed;
      bytes = bytes.first(std::min<uint64_t>(bytes.size(), room));
    }
    piece.size = bytes.size();
    if (piece.block == 0) {
      written.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    } else if (!of_device) {
      pointed += bytes.size();
    }
    Piece* const last = written.pieces.empty() ? nullptr : &written.pieces.back();
    if (last != nullptr && last->block == piece.block &&
        last->offset + last->size == piece.offset &&
        (piece.block == 0 || last->source + last->size == piece.source)) {
      last->size += piece.size;
    } else {
      written.pieces.push_back(piece);
    }
    post.Skip(bytes.size());
  }
  written.last = post.told();
  return written;
}

uint32_t OutboundPeer::BlockOf(std::span<const std::byte> bytes, uint64_t& source) {
  const std::optional<kernels::SharedLocation> location = kernels::FindShared(bytes);
  if (!location.has_value()) {
    return 0;
  }
  const uint32_t id = location->block->id();
  if (!imported_.contains(id)) {
    ExportBlock(location->block);
    return 0;
  }
  source = location->offset;
  return id;
}

}  // namespace baton::transport::ipc
