// What the shipping thread does for a transfer: group, checksum, post, announce, commit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"
#include "common/handoff/commit_digest.h"
#include "common/handoff/send/commit_message.h"
#include "common/handoff/send/link_rate.h"
#include "common/handoff/send/outgoing_session.h"
#include "common/handoff/send/peer_cache.h"
#include "common/handoff/send/segment_grouper.h"
#include "common/handoff/send/sender_core.h"  // IWYU pragma: keep
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

absl::StatusOr<uint64_t> ChecksumOf(const Segment& segment) {
  if (segment.device != nullptr) {
    return segment.device->WordSum(segment.memory);
  }
  Xxh3Stream checksum;
  for (const std::span<const std::byte> piece : segment.memory) {
    checksum.Update(piece);
  }
  return checksum.value();
}

// What is sent of a layer lies in one piece in the window: as few runs as the memory has pieces.
std::vector<transport::SendRun> RunsOf(const Segment& segment, const kv::WindowGeometry& geometry) {
  std::vector<transport::SendRun> runs;
  PieceReader<const std::byte> reader(segment.memory);
  const int64_t layer_bytes =
      int64_t{segment.page_count} * geometry.page_bytes_of(segment.layer_begin);
  for (int32_t layer = 0; layer < segment.layer_count; ++layer) {
    int64_t offset = geometry.offset(segment.layer_begin + layer, segment.page_begin);
    for (int64_t left = layer_bytes; left > 0;) {
      const std::span<const std::byte> piece = reader.Next(static_cast<size_t>(left));
      BATON_CHECK(!piece.empty());
      const auto bytes = static_cast<int64_t>(piece.size());
      runs.push_back({.offset = offset, .source = piece});
      offset += bytes;
      left -= bytes;
    }
  }
  return runs;
}

}  // namespace

std::shared_ptr<OutgoingSession::Outgoing> OutgoingSession::NextSegment() {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || peer_ == nullptr) {
      return nullptr;
    }
    status = GroupWaiting();
    if (status.ok()) {
      return segments_.empty() || OutOfCredit() ? nullptr : segments_.front();
    }
  }
  Fail(std::move(status));
  return nullptr;
}

absl::Status OutgoingSession::GroupWaiting() {
  while (!waiting_.empty()) {
    const int64_t bytes = segment_bytes(waiting_.front().device != nullptr);
    BATON_ASSIGN_OR_RETURN(std::vector<Segment> complete, grouper_->Add(waiting_.front(), bytes));
    waiting_.pop_front();
    for (Segment& segment : complete) {
      segments_.push_back(std::make_shared<Outgoing>(Outgoing{.segment = std::move(segment)}));
    }
  }
  if (RestIsDue()) {
    if (std::optional<Segment> rest = grouper_->Flush(); rest.has_value()) {
      segments_.push_back(std::make_shared<Outgoing>(Outgoing{.segment = *std::move(rest)}));
    }
  }
  return absl::OkStatus();
}

bool OutgoingSession::RestIsDue() const {
  const bool idle = segments_.empty() && open_posts_.empty();
  return commit_.has_value() || (idle && grouper_->rest_is_encoded());
}

void OutgoingSession::Work() {
  {
    absl::MutexLock lock(&mutex_);
    working_ = true;
  }
  while (const std::shared_ptr<Outgoing> outgoing = NextSegment()) {
    absl::Status status = Ship(*outgoing);
    if (absl::IsResourceExhausted(status)) {
      core_->ScheduleAfterCompletion(shared_from_this());
      break;
    }
    if (!status.ok()) {
      Fail(std::move(status));
      break;
    }
    absl::MutexLock lock(&mutex_);
    if (!segments_.empty() && segments_.front() == outgoing) {
      segments_.pop_front();
    }
  }
  SendCommitIfDue();
  {
    absl::MutexLock lock(&mutex_);
    working_ = false;
  }
  EndIfDue();
}

// Transport and header are on their way to the receiver at the same time.
absl::Status OutgoingSession::Ship(Outgoing& outgoing) {
  if (!outgoing.checksum.has_value()) {
    BATON_ASSIGN_OR_RETURN(outgoing.checksum, ChecksumOf(outgoing.segment));
  }
  uint32_t segment_index = 0;
  {
    absl::MutexLock lock(&mutex_);
    segment_index = static_cast<uint32_t>(checksums_.size());
  }
  BATON_RETURN_IF_ERROR(PostSegment(outgoing.segment, segment_index));
  SendHeader(outgoing.segment, *outgoing.checksum);
  return absl::OkStatus();
}

void OutgoingSession::SendHeader(const Segment& segment, uint64_t checksum) {
  kv::SegmentHeader header;
  header.reservation_id = transfer_.reserved.reservation_id();
  header.epoch = transfer_.reserved.epoch();
  header.attempt = transfer_.attempt;
  header.layer_begin = static_cast<uint16_t>(segment.layer_begin);
  header.layer_count = static_cast<uint16_t>(segment.layer_count);
  header.head_count = static_cast<uint16_t>(geometry_.kv_heads);
  header.head_total = static_cast<uint16_t>(geometry_.kv_heads);
  header.page_begin = static_cast<uint32_t>(segment.page_begin);
  header.page_count = static_cast<uint32_t>(segment.page_count);
  header.format = format_;
  header.format_version = static_cast<uint16_t>(transfer_.layout.format_version());
  header.checksum_type =
      segment.device == nullptr ? kv::ChecksumType::kXxh3 : kv::ChecksumType::kWordSum;
  header.payload_bytes = static_cast<uint64_t>(segment.payload_bytes());
  header.checksum = checksum;
  {
    absl::MutexLock lock(&mutex_);
    header.segment_index = static_cast<uint32_t>(checksums_.size());
    checksums_.push_back(header.checksum);
    payload_bytes_ += static_cast<int64_t>(header.payload_bytes);
  }
  worker::v1::TransferRequest request;
  const auto bytes = kv::EncodeSegmentHeader(header);
  request.set_segment_header(bytes.data(), bytes.size());
  if (const auto stream = control(); stream != nullptr) {
    stream->Send(std::move(request));
  }
}

absl::Status OutgoingSession::PostSegment(const Segment& segment, uint32_t segment_index) {
  transport::PostParams params;
  params.window = window_;
  params.transfer_id = kv::TransferId(transfer_.attempt, segment_index);
  params.tag = core_->NextTag();
  params.runs = RunsOf(segment, geometry_);
  std::shared_ptr<const Peer> peer;
  const uint64_t tag = params.tag;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) {
      return status_;
    }
    params.deadline = deadline_;
    peer = peer_;
    open_posts_.emplace(tag, segment.payload_bytes());
    open_bytes_ += segment.payload_bytes();
  }
  absl::Status status = core_->Post(shared_from_this(), *peer, std::move(params));
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    EraseOpen(tag);
  } else if (Failed()) {
    core_->CancelPosts({tag});  // it may have failed before the post was there to be cancelled
  }
  if (absl::IsUnavailable(status)) {
    core_->peers().Drop(transfer_.reserved.control_address(), peer);
  }
  return status;
}

int64_t OutgoingSession::segment_bytes(bool of_device) const {
  const int64_t told = core_->options().segment_bytes;
  if (told > 0) {
    return told;
  }
  return of_device ? kDeviceSegmentBytes : SegmentBytes(peer_->rate->bytes_per_second());
}

bool OutgoingSession::OutOfCredit() const {
  const bool of_device = segments_.front()->segment.device != nullptr;
  const bool by_rate = core_->options().segment_bytes == 0 && !of_device;
  const int64_t credit = by_rate ? CreditBytes(peer_->rate->bytes_per_second())
                                 : kLeastCreditSegments * segment_bytes(of_device);
  return open_bytes_ >= credit;
}

void OutgoingSession::EraseOpen(uint64_t tag) {
  const auto found = open_posts_.find(tag);
  open_bytes_ -= found->second;
  open_posts_.erase(found);
}

bool OutgoingSession::Failed() {
  absl::MutexLock lock(&mutex_);
  return !status_.ok();
}

void OutgoingSession::SendCommitIfDue() {
  worker::v1::TransferRequest request;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || peer_ == nullptr || !commit_.has_value() || commit_sent_) {
      return;
    }
    // The commit may have come since segments were grouped: what is left then goes out first.
    if (!waiting_.empty() || !segments_.empty() || grouper_->has_rest()) {
      return;
    }
    commit_sent_ = true;
    worker::v1::Commit& commit = *request.mutable_commit();
    FillCommit(*commit_, commit);
    commit.set_segments(static_cast<uint32_t>(checksums_.size()));
    commit.set_payload_bytes(static_cast<uint64_t>(payload_bytes_));
    commit.set_digest(CommitDigest(checksums_, commit));
  }
  if (const auto stream = control(); stream != nullptr) {
    stream->Send(std::move(request));
  }
}

}  // namespace baton::handoff
