#include "common/transport/inbound_window.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"
#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {
namespace {

// Copied at once, so that a processor still has the bytes when they are added to the checksum.
constexpr size_t kCachedBytes = size_t{128} << 10;

absl::Status Withdrawn() {
  return absl::FailedPreconditionError(
      "the window is withdrawn: its reservation has ended, nothing may be written any more");
}

}  // namespace

InboundWindow::InboundWindow(const std::vector<std::span<std::byte>>& extents,
                             kernels::LandingMemory& memory,
                             std::shared_ptr<CompletionQueue> completions)
    : extents_(JoinAdjacent<std::byte>(extents)),
      memory_(memory),
      completions_(std::move(completions)) {
  extent_begin_.reserve(extents_.size());
  for (const std::span<std::byte> extent : extents_) {
    extent_begin_.push_back(size_bytes_);
    size_bytes_ += static_cast<int64_t>(extent.size());
  }
}

absl::Status InboundWindow::CheckRuns(const std::vector<ReceiveRun>& runs) const {
  if (runs.empty()) {
    return absl::InvalidArgumentError("a transfer needs at least one run");
  }
  for (const ReceiveRun& run : runs) {
    if (run.offset < 0 || run.size_bytes <= 0 || run.offset > size_bytes_ ||
        run.size_bytes > size_bytes_ - run.offset) {
      return absl::InvalidArgumentError(absl::StrCat("run of ",
                                                     run.size_bytes,
                                                     " bytes at offset ",
                                                     run.offset,
                                                     " is not inside the window of ",
                                                     size_bytes_,
                                                     " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status InboundWindow::Announce(const ExpectParams& params) {
  BATON_RETURN_IF_ERROR(CheckRuns(params.runs));
  Transfer transfer;
  transfer.tag = params.tag;
  transfer.kind = params.checksum;
  for (const ReceiveRun& run : params.runs) {
    transfer.total_bytes += run.size_bytes;
    if (!transfer.runs.empty() &&
        transfer.runs.back().offset + transfer.runs.back().size_bytes == run.offset) {
      transfer.runs.back().size_bytes += run.size_bytes;
    } else {
      transfer.runs.push_back(run);
    }
  }
  Ready ready;
  {
    absl::MutexLock lock(&mutex_);
    if (withdrawn_) {
      return Withdrawn();
    }
    const auto waiter = waiters_.find(params.transfer_id);
    if (waiter != waiters_.end()) {
      transfer.owner = waiter->second.owner;
    }
    if (!transfers_.try_emplace(params.transfer_id, std::move(transfer)).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("transfer ", params.transfer_id, " was announced before"));
    }
    if (waiter != waiters_.end()) {
      ready = std::move(waiter->second.ready);
      waiters_.erase(waiter);
    }
  }
  if (ready) {
    ready(absl::OkStatus());
  }
  return absl::OkStatus();
}

absl::Status InboundWindow::ClaimAnnounced(uint64_t transfer_id, const void* owner) {
  Transfer& transfer = transfers_.at(transfer_id);
  if (transfer.ended) {
    return absl::FailedPreconditionError(
        absl::StrCat("transfer ", transfer_id, " has ended; nothing may be written any more"));
  }
  if (transfer.owner != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("transfer ", transfer_id, " is being written by another stream"));
  }
  transfer.owner = owner;
  return absl::OkStatus();
}

void InboundWindow::Claim(uint64_t transfer_id, const void* owner, Ready ready) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (withdrawn_) {
      status = Withdrawn();
    } else if (transfers_.contains(transfer_id)) {
      status = ClaimAnnounced(transfer_id, owner);
    } else if (waiters_.contains(transfer_id)) {
      status =
          absl::AlreadyExistsError(absl::StrCat("another stream waits for transfer ", transfer_id));
    } else if (waiters_.size() >= kMaxWaiters) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "more than ", kMaxWaiters, " transfers of the window wait for their segment header"));
    } else {
      waiters_.emplace(transfer_id, Waiter{owner, std::move(ready)});
      return;
    }
  }
  ready(std::move(status));
}

absl::StatusOr<InboundWindow::Transfer*> InboundWindow::FindOwned(uint64_t transfer_id,
                                                                  const void* owner) {
  if (withdrawn_) {
    return Withdrawn();
  }
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end() || found->second.owner != owner || found->second.ended) {
    return absl::FailedPreconditionError(
        absl::StrCat("transfer ", transfer_id, " is not open for this stream"));
  }
  return &found->second;
}

absl::StatusOr<InboundWindow::Transfer*> InboundWindow::Advance(uint64_t transfer_id,
                                                                const void* owner,
                                                                int64_t offset,
                                                                size_t size) {
  BATON_ASSIGN_OR_RETURN(Transfer * transfer, FindOwned(transfer_id, owner));
  if (size == 0) {
    return transfer;
  }
  if (transfer->run_index == transfer->runs.size()) {
    return Refuse(*transfer,
                  absl::StrCat("transfer ",
                               transfer_id,
                               " has more bytes than the ",
                               transfer->total_bytes,
                               " announced"));
  }
  const ReceiveRun& run = transfer->runs[transfer->run_index];
  const int64_t expected_offset = run.offset + transfer->run_written;
  const int64_t room = run.size_bytes - transfer->run_written;
  if (offset != expected_offset || size > static_cast<size_t>(room)) {
    return Refuse(*transfer,
                  absl::StrCat("transfer ",
                               transfer_id,
                               ": ",
                               size,
                               " bytes at offset ",
                               offset,
                               " where at most ",
                               room,
                               " at offset ",
                               expected_offset,
                               " were announced"));
  }
  transfer->run_written += static_cast<int64_t>(size);
  transfer->written_bytes += static_cast<int64_t>(size);
  if (transfer->run_written == run.size_bytes) {
    ++transfer->run_index;
    transfer->run_written = 0;
  }
  return transfer;
}

absl::Status InboundWindow::Write(uint64_t transfer_id,
                                  const void* owner,
                                  int64_t offset,
                                  std::span<const std::byte> bytes) {
  absl::MutexLock lock(&mutex_);
  BATON_ASSIGN_OR_RETURN(Transfer * transfer, Advance(transfer_id, owner, offset, bytes.size()));
  if (transfer->kind == Checksum::kXxh3 && transfer->checksum == nullptr) {
    transfer->checksum = std::make_unique<Xxh3Stream>();
  }
  const absl::Status status = Copy(offset, bytes, transfer->checksum.get());
  return status.ok() ? status : End(*transfer, status);
}

absl::Status InboundWindow::Pull(uint64_t transfer_id,
                                 const void* owner,
                                 int64_t offset,
                                 std::span<const std::byte> bytes) {
  absl::MutexLock lock(&mutex_);
  BATON_ASSIGN_OR_RETURN(Transfer * transfer, Advance(transfer_id, owner, offset, bytes.size()));
  if (transfer->kind != Checksum::kWordSum) {
    return End(
        *transfer,
        absl::FailedPreconditionError("bytes of a device, with a checksum that the host computes"));
  }
  for (const std::span<std::byte> place : Places(offset, bytes.size())) {
    const absl::Status status = memory_.Pull(place.data(), bytes.first(place.size()));
    if (!status.ok()) {
      return End(*transfer, status);
    }
    bytes = bytes.subspan(place.size());
  }
  return absl::OkStatus();
}

std::vector<std::span<std::byte>> InboundWindow::Places(int64_t offset, size_t size) const {
  std::vector<std::span<std::byte>> places;
  if (size == 0) {
    return places;
  }
  const auto after = std::upper_bound(extent_begin_.begin(), extent_begin_.end(), offset);
  auto index = static_cast<size_t>(after - extent_begin_.begin()) - 1;
  auto skip = static_cast<size_t>(offset - extent_begin_[index]);
  for (; size > 0; ++index, skip = 0) {
    const std::span<std::byte> extent = extents_[index].subspan(skip);
    if (!extent.empty()) {
      places.push_back(extent.first(std::min(extent.size(), size)));
      size -= places.back().size();
    }
  }
  return places;
}

// Memory of another process may change until it is copied: where the host can read the copy, that
// is what counts.
absl::Status InboundWindow::Copy(int64_t offset,
                                 std::span<const std::byte> bytes,
                                 Xxh3Stream* checksum) {
  for (std::span<std::byte> place : Places(offset, bytes.size())) {
    while (!place.empty()) {
      const size_t size = std::min(place.size(), kCachedBytes);
      BATON_RETURN_IF_ERROR(memory_.Write(place.data(), bytes.first(size)));
      if (checksum != nullptr) {
        checksum->Update(memory_.is_host() ? place.first(size) : bytes.first(size));
      }
      bytes = bytes.subspan(size);
      place = place.subspan(size);
    }
  }
  return absl::OkStatus();
}

absl::Status InboundWindow::Finish(uint64_t transfer_id, const void* owner, int64_t total_bytes) {
  absl::MutexLock lock(&mutex_);
  BATON_ASSIGN_OR_RETURN(Transfer * transfer, FindOwned(transfer_id, owner));
  if (total_bytes != transfer->total_bytes || transfer->written_bytes != transfer->total_bytes) {
    return Refuse(*transfer,
                  absl::StrCat("transfer ",
                               transfer_id,
                               ": the sender says ",
                               total_bytes,
                               " bytes and sent ",
                               transfer->written_bytes,
                               ", announced are ",
                               transfer->total_bytes));
  }
  return End(*transfer, absl::OkStatus());
}

void InboundWindow::Abandon(uint64_t transfer_id, const void* owner, const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  const auto waiter = waiters_.find(transfer_id);
  if (waiter != waiters_.end() && waiter->second.owner == owner) {
    waiters_.erase(waiter);
    return;
  }
  const auto found = transfers_.find(transfer_id);
  if (found != transfers_.end() && found->second.owner == owner && !found->second.ended) {
    End(found->second, reason).IgnoreError();
  }
}

bool InboundWindow::IsOpen(uint64_t transfer_id, const void* owner) {
  absl::MutexLock lock(&mutex_);
  return FindOwned(transfer_id, owner).ok();
}

absl::StatusOr<uint64_t> InboundWindow::SumUp(const Transfer& transfer) {
  if (transfer.kind == Checksum::kXxh3) {
    BATON_RETURN_IF_ERROR(memory_.Wait());
    return transfer.checksum->value();
  }
  std::vector<std::span<const std::byte>> pieces;
  for (const ReceiveRun& run : transfer.runs) {
    for (const std::span<std::byte> place :
         Places(run.offset, static_cast<size_t>(run.size_bytes))) {
      pieces.emplace_back(place);
    }
  }
  return memory_.WordSum(pieces);
}

absl::Status InboundWindow::End(Transfer& transfer, absl::Status status) {
  transfer.ended = true;
  absl::StatusOr<uint64_t> checksum = 0;
  if (status.ok()) {
    checksum = SumUp(transfer);
    status = checksum.status();
  }
  if (!status.ok() && transfer.written_bytes > 0) {
    status.Update(memory_.Wait());  // nothing is written any more, whatever has failed
  }
  transfer.checksum = nullptr;
  completions_->Push(Completion{.kind = CompletionKind::kReceived,
                                .tag = transfer.tag,
                                .status = status,
                                .bytes = transfer.written_bytes,
                                .checksum = checksum.value_or(0)});
  return status;
}

absl::Status InboundWindow::Refuse(Transfer& transfer, const std::string& message) {
  return End(transfer, absl::InvalidArgumentError(message));
}

void InboundWindow::CancelTransfers() {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, transfer] : transfers_) {
    if (!transfer.ended) {
      End(transfer, absl::CancelledError("the receiver gave the transfer up")).IgnoreError();
    }
  }
}

void InboundWindow::Withdraw() {
  std::unordered_map<uint64_t, Waiter> waiters;
  {
    absl::MutexLock lock(&mutex_);
    if (withdrawn_) {
      return;
    }
    withdrawn_ = true;
    waiters.swap(waiters_);
    for (auto& [id, transfer] : transfers_) {
      if (!transfer.ended) {
        End(transfer, absl::CancelledError("the window was withdrawn")).IgnoreError();
      }
    }
  }
  for (auto& [id, waiter] : waiters) {
    waiter.ready(Withdrawn());
  }
}

}  // namespace baton::transport
