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
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/link_sizes.h"
#include "common/transport/nccl/pipe.h"
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
                           OnCompletion completed)
    : pipe_(std::move(pipe)),
      link_(std::move(link)),
      sizes_(sizes),
      share_(budget),
      completed_(std::move(completed)),
      since_(absl::Now()) {
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
  const uint64_t id = next_post_++;
  Post& post = posts_[id];
  post.params = std::move(params);
  std::erase_if(post.params.runs, [](const SendRun& run) { return run.source.empty(); });
  for (const SendRun& run : post.params.runs) {
    post.total_bytes += static_cast<int64_t>(run.source.size());
  }
  post_of_tag_[post.params.tag] = id;
  LinkMessage message;
  worker::v1::LinkRequest& request = *message.mutable_request();
  request.set_post(id);
  request.set_transfer_id(post.params.transfer_id);
  request.set_total_bytes(static_cast<uint64_t>(post.total_bytes));
  request.set_window(post.params.window);
  pipe_->Send(std::move(message));
}

absl::Status OutboundPeer::Take(const LinkMessage& message) {
  switch (message.message_case()) {
    case LinkMessage::kUp:
      peer_up_ = true;
      return absl::OkStatus();
    case LinkMessage::kReady:
      return TakeReady(message.ready());
    case LinkMessage::kGo:
      return TakeGo();
    case LinkMessage::kVerdict:
      return TakeVerdict(message.verdict());
    default:
      return absl::InvalidArgumentError("a message that receivers don't send");
  }
}

absl::Status OutboundPeer::TakeReady(const worker::v1::LinkReady& ready) {
  const auto post = posts_.find(ready.post());
  if (post == posts_.end() || post->second.given_up.has_value()) {
    return absl::OkStatus();  // it crossed the end of the post
  }
  if (post->second.run_index != 0 || post->second.position != 0 ||
      std::find(ready_.begin(), ready_.end(), ready.post()) != ready_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("post ", ready.post(), " was called ready twice"));
  }
  ready_.push_back(ready.post());
  return absl::OkStatus();
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

absl::Status OutboundPeer::TakeVerdict(const worker::v1::LinkVerdict& verdict) {
  const auto found = posts_.find(verdict.post());
  if (found == posts_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("a verdict of no post, ", verdict.post()));
  }
  const Post& post = found->second;
  absl::Status status(static_cast<absl::StatusCode>(verdict.code()), verdict.message());
  if (status.ok() && post.run_index != post.params.runs.size()) {
    return absl::InvalidArgumentError("a transfer was called complete before its last byte");
  }
  End(verdict.post(), status.ok() ? status : post.given_up.value_or(status));
  return absl::OkStatus();
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
  while (connected() && !ready_.empty() && flights_.size() < DeviceLink::kSlots &&
         share_.Take(sizes_.max_blocks)) {
    BATON_RETURN_IF_ERROR(TellChunk());
  }
  return absl::OkStatus();
}

absl::Status OutboundPeer::TellChunk() {
  const uint64_t id = ready_.front();
  ready_.pop_front();
  std::vector<std::span<const std::byte>> sources;
  LinkMessage message;
  *message.mutable_chunk() = NextChunk(id, posts_.at(id), sources);
  Flight& flight = flights_.emplace_back(Flight{.carried = !message.chunk().carried().empty()});
  if (!flight.carried) {
    flight.slot = next_slot_++ % DeviceLink::kSlots;
    for (const std::span<const std::byte> source : sources) {
      flight.size += source.size();
    }
    BATON_RETURN_IF_ERROR(link_->Load(flight.slot, sources));
  }
  if (!message.chunk().last()) {
    ready_.push_back(id);
  }
  pipe_->Send(std::move(message));
  return absl::OkStatus();
}

LinkChunk OutboundPeer::NextChunk(uint64_t id,
                                  Post& post,
                                  std::vector<std::span<const std::byte>>& sources) const {
  const std::vector<SendRun>& runs = post.params.runs;
  LinkChunk chunk;
  chunk.set_post(id);
  const bool of_device = IsOfDevice(runs[post.run_index].source);
  const size_t most = of_device ? sizes_.slot_bytes : std::min(kMaxCarriedBytes, sizes_.slot_bytes);
  size_t size = 0;
  while (post.run_index < runs.size() && size < most && chunk.pieces_size() < kMaxPieces &&
         IsOfDevice(runs[post.run_index].source) == of_device) {
    const SendRun& run = runs[post.run_index];
    std::span<const std::byte> bytes = run.source.subspan(post.position);
    bytes = bytes.first(std::min(bytes.size(), most - size));
    AddPiece(run.offset + static_cast<int64_t>(post.position), bytes, chunk);
    if (of_device) {
      AddSource(bytes, sources);
    } else {
      chunk.mutable_carried()->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    size += bytes.size();
    post.position += bytes.size();
    if (post.position == run.source.size()) {
      ++post.run_index;
      post.position = 0;
    }
  }
  chunk.set_last(post.run_index == runs.size());
  return chunk;
}

void OutboundPeer::Cancel(uint64_t tag, const absl::Status& reason) {
  if (const auto found = post_of_tag_.find(tag); found != post_of_tag_.end()) {
    GiveUp(found->second, posts_.at(found->second), reason);
  }
}

void OutboundPeer::CancelAll(const absl::Status& reason) {
  for (auto& [id, post] : posts_) {
    GiveUp(id, post, reason);
  }
}

void OutboundPeer::GiveUp(uint64_t id, Post& post, const absl::Status& reason) {
  if (post.given_up.has_value()) {
    return;
  }
  post.given_up = reason;
  post.given_up_at = absl::Now();
  std::erase(ready_, id);
  LinkMessage message;
  message.mutable_release()->set_post(id);
  pipe_->Send(std::move(message));
}

void OutboundPeer::End(uint64_t id, absl::Status status) {
  const auto found = posts_.find(id);
  const Completion completion = {.kind = CompletionKind::kSent,
                                 .tag = found->second.params.tag,
                                 .status = std::move(status),
                                 .bytes = found->second.total_bytes};
  std::erase(ready_, id);
  post_of_tag_.erase(completion.tag);
  posts_.erase(found);
  completed_(completion);
}

absl::Status OutboundPeer::EndOverdue(absl::Time now, absl::Time& next) {
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

void OutboundPeer::Close(const absl::Status& reason) {
  pipe_->Close();
  link_.reset();
  share_.GiveBack();
  while (!posts_.empty()) {
    const auto& [id, post] = *posts_.begin();
    End(id, post.given_up.value_or(reason));
  }
}

}  // namespace baton::transport::nccl
