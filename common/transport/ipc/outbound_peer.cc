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
#include "common/transport/transport.h"
#include "kernels/core/shared_blocks.h"

namespace baton::transport::ipc {

OutboundPeer::OutboundPeer(Descriptor socket, OnCompletion completed)
    : completed_(std::move(completed)), since_(absl::Now()), channel_(std::move(socket)) {
  channel_.Send(Hello{});
}

OutboundPeer::~OutboundPeer() { Close(absl::CancelledError("the connection was closed")); }

void OutboundPeer::Start(PostParams params) {
  if (absl::Status status = CheckSources(params); !status.ok()) {
    completed_(
        Completion{.kind = CompletionKind::kSent, .tag = params.tag, .status = std::move(status)});
    return;
  }
  const uint64_t id = next_post_++;
  Post& post = posts_[id];
  post.params = std::move(params);
  std::erase_if(post.params.runs, [](const SendRun& run) { return run.source.empty(); });
  for (const SendRun& run : post.params.runs) {
    post.total_bytes += static_cast<int64_t>(run.source.size());
  }
  post_of_tag_[post.params.tag] = id;
  channel_.Send(Request{.post = id,
                        .transfer_id = post.params.transfer_id,
                        .total_bytes = static_cast<uint64_t>(post.total_bytes),
                        .window = post.params.window});
}

absl::Status OutboundPeer::Advance() {
  while (std::optional<Channel::Received> received = channel_.Receive()) {
    BATON_RETURN_IF_ERROR(Take(received->message));
  }
  channel_.Flush();
  while (channel_.idle() && channel_.status().ok() && !ready_.empty()) {
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
    return TakeVerdict(*verdict);
  }
  if (const auto* ready = std::get_if<Ready>(&message)) {
    return TakeReady(*ready);
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

absl::Status OutboundPeer::TakeReady(const Ready& ready) {
  const auto post = posts_.find(ready.post);
  if (post == posts_.end() || post->second.given_up.has_value()) {
    return absl::OkStatus();  // it crossed the end of the post
  }
  if (post->second.run_index != 0 || post->second.position != 0 ||
      std::find(ready_.begin(), ready_.end(), ready.post) != ready_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("post ", ready.post, " was called ready twice"));
  }
  ready_.push_back(ready.post);
  return absl::OkStatus();
}

absl::Status OutboundPeer::TakeVerdict(const Verdict& verdict) {
  const auto found = posts_.find(verdict.post);
  if (found == posts_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("a verdict of no post, ", verdict.post));
  }
  const Post& post = found->second;
  const bool told = post.run_index == post.params.runs.size();
  absl::Status status(static_cast<absl::StatusCode>(verdict.code), verdict.message);
  if (status.ok() && !told) {
    return absl::InvalidArgumentError("a transfer was called complete before its last byte");
  }
  End(verdict.post, status.ok() ? status : post.given_up.value_or(status));
  return absl::OkStatus();
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
  channel_.Send(Release{.post = id});
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
  while (!posts_.empty()) {
    const auto& [id, post] = *posts_.begin();
    End(id, post.given_up.value_or(reason));
  }
}

void OutboundPeer::TellPieces() {
  const uint64_t id = ready_.front();
  ready_.pop_front();
  Post& post = posts_.at(id);
  const Written written = NextPieces(id, post);
  if (!written.last) {
    ready_.push_back(id);
  }
  channel_.Send(written);
}

Written OutboundPeer::NextPieces(uint64_t id, Post& post) {
  const std::vector<SendRun>& runs = post.params.runs;
  Written written = {.post = id};
  uint64_t pointed = 0;
  while (post.run_index < runs.size() && written.pieces.size() < kMaxPieces &&
         pointed < kPointedBytes && written.bytes.size() < kMaxCarriedBytes) {
    const SendRun& run = runs[post.run_index];
    std::span<const std::byte> bytes = run.source.subspan(post.position);
    Piece piece = {.offset = static_cast<uint64_t>(run.offset) + post.position};
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
    post.position += bytes.size();
    if (post.position == run.source.size()) {
      ++post.run_index;
      post.position = 0;
    }
  }
  written.last = post.run_index == runs.size();
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
