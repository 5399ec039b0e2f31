#include "common/transport/nccl/outbound_peer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/link_sizes.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/shared_blocks.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {
namespace {

using kernels::DeviceLink;
using worker::v1::LinkChunk;
using worker::v1::LinkMessage;

bool IsOfDevice(std::span<const std::byte> bytes) {
  const std::optional<kernels::SharedLocation> location = kernels::FindShared(bytes);
  return location.has_value() && location->block->kind() == kernels::BlockKind::kDevice;
}

// Behind what is there, as one piece with it where they are neighbours.
void AddPiece(int64_t offset, std::span<const std::byte> bytes, LinkChunk& chunk) {
  const auto begin = static_cast<uint64_t>(offset);
  if (chunk.pieces_size() > 0) {
    worker::v1::LinkPiece& last = *chunk.mutable_pieces(chunk.pieces_size() - 1);
    if (last.offset() + last.size() == begin) {
      last.set_size(last.size() + bytes.size());
      return;
    }
  }
  worker::v1::LinkPiece& piece = *chunk.add_pieces();
  piece.set_offset(begin);
  piece.set_size(bytes.size());
}

void AddSource(std::span<const std::byte> bytes, std::vector<std::span<const std::byte>>& sources) {
  if (!sources.empty() && sources.back().data() + sources.back().size() == bytes.data()) {
    sources.back() = {sources.back().data(), sources.back().size() + bytes.size()};
  } else {
    sources.push_back(bytes);
  }
}

}  // namespace

OutboundPeer::OutboundPeer(std::shared_ptr<Pipe> pipe,
                           std::unique_ptr<DeviceLink> link,
                           const std::string& id,
                           const kernels::LinkSizes& sizes,
                           BlockBudget& budget,
                           OutboundPosts::OnCompletion completed)
    : pipe_(std::move(pipe)),
      link_(std::move(link)),
      sizes_(sizes),
      share_(budget),
      since_(absl::Now()),
      posts_(std::move(completed), [this](uint64_t post) {
        LinkMessage message;
        message.mutable_release()->set_post(post);
        pipe_->Send(std::move(message));
      }) {
  LinkMessage message;
  worker::v1::LinkHello& hello = *message.mutable_hello();
  hello.set_version(kLinkVersion);
  hello.set_id(id);
  hello.set_slot_bytes(sizes.slot_bytes);
  hello.set_max_blocks(static_cast<uint32_t>(sizes.max_blocks));
  pipe_->Send(std::move(message));
  pipe_->Read();
}

OutboundPeer::~OutboundPeer() { Close(absl::CancelledError("the connection was closed")); }

void OutboundPeer::Start(PostParams params) {
  const auto& [id, post] = posts_.Start(std::move(params));
  LinkMessage message;
  worker::v1::LinkRequest& request = *message.mutable_request();
  request.set_post(id);
  request.set_transfer_id(post.params.transfer_id);
  request.set_total_bytes(static_cast<uint64_t>(post.total_bytes));
  request.set_window(post.params.window);
  pipe_->Send(std::move(message));
}

absl::Status OutboundPeer::Take(const LinkMessage& message) {
  BATON_RETURN_IF_ERROR(Handle(message));
  pipe_->Read();
  return absl::OkStatus();
}

absl::Status OutboundPeer::Handle(const LinkMessage& message) {
  switch (message.message_case()) {
    case LinkMessage::kUp:
      peer_up_ = true;
      return absl::OkStatus();
    case LinkMessage::kReady:
      return posts_.MakeReady(message.ready().post());
    case LinkMessage::kGo:
      return TakeGo();
    case LinkMessage::kVerdict:
      return posts_.TakeVerdict(
          message.verdict().post(), message.verdict().code(), message.verdict().message());
    default:
      return absl::InvalidArgumentError("a message that receivers don't send");
  }
}

absl::Status OutboundPeer::TakeGo() {
  const auto flight = std::find_if(
      flights_.begin(), flights_.end(), [](const Flight& told) { return !told.going; });
  if (flight == flights_.end()) {
    return absl::InvalidArgumentError("a go without a chunk");
  }
  flight->going = true;
  flight->since = absl::Now();
  return flight->carried ? absl::OkStatus() : link_->Send(flight->slot, flight->size);
}

absl::Status OutboundPeer::Advance(absl::Time now) {
  if (!link_up_) {
    BATON_ASSIGN_OR_RETURN(link_up_, link_->Connected());
  }
  while (!flights_.empty() && flights_.front().going) {
    const Flight& flight = flights_.front();
    if (!flight.carried) {
      BATON_ASSIGN_OR_RETURN(const bool idle, link_->Idle(flight.slot));
      if (!idle && now - flight.since > kStuck) {
        return absl::UnavailableError("the peer does not take what it said it would");
      }
      if (!idle) {
        break;
      }
    }
    flights_.pop_front();
  }
  if (flights_.empty()) {
    share_.GiveBack();
  }
  while (connected() && posts_.has_ready() && flights_.size() < DeviceLink::kSlots &&
         share_.Take(sizes_.max_blocks)) {
    BATON_RETURN_IF_ERROR(TellChunk());
  }
  return absl::OkStatus();
}

absl::Status OutboundPeer::TellChunk() {
  auto [id, post] = posts_.TakeReady();
  std::vector<std::span<const std::byte>> sources;
  LinkMessage message;
  *message.mutable_chunk() = NextChunk(id, post, sources);
  Flight& flight = flights_.emplace_back(Flight{.carried = !message.chunk().carried().empty()});
  if (!flight.carried) {
    flight.slot = next_slot_++ % DeviceLink::kSlots;
    for (const std::span<const std::byte> source : sources) {
      flight.size += source.size();
    }
    BATON_RETURN_IF_ERROR(link_->Load(flight.slot, sources));
  }
  if (!message.chunk().last()) {
    posts_.PutBack(id);
  }
  pipe_->Send(std::move(message));
  return absl::OkStatus();
}

LinkChunk OutboundPeer::NextChunk(uint64_t id,
                                  OutboundPosts::Post& post,
                                  std::vector<std::span<const std::byte>>& sources) const {
  LinkChunk chunk;
  chunk.set_post(id);
  const bool of_device = IsOfDevice(post.bytes());
  const size_t most = of_device ? sizes_.slot_bytes : std::min(kMaxCarriedBytes, sizes_.slot_bytes);
  size_t size = 0;
  while (!post.told() && size < most && chunk.pieces_size() < kMaxPieces &&
         IsOfDevice(post.bytes()) == of_device) {
    std::span<const std::byte> bytes = post.bytes();
    bytes = bytes.first(std::min(bytes.size(), most - size));
    AddPiece(post.offset(), bytes, chunk);
    if (of_device) {
      AddSource(bytes, sources);
    } else {
      chunk.mutable_carried()->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    size += bytes.size();
    post.Skip(bytes.size());
  }
  chunk.set_last(post.told());
  return chunk;
}

void OutboundPeer::Close(const absl::Status& reason) {
  pipe_->Close();
  link_.reset();
  share_.GiveBack();
  posts_.Close(reason);
}

}  // namespace baton::transport::nccl
