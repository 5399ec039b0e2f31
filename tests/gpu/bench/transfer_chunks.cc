#include "tests/gpu/bench/transfer_chunks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/transport/transport.h"
#include "kernels/core/word_sum.h"
#include "tests/gpu/bench/transfer_ends.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kSourceBytes = size_t{64} << 20;
// Pages begin at multiples of it.
constexpr size_t kChunkAlignment = 64;
constexpr size_t kMostChunkBytes = size_t{64} << 10;
constexpr int kMostChunks = 16;  // of a transfer
// Transfers that are under way at once, each to a slot of the window of its own. One is written
// again when its bytes have been looked at.
constexpr size_t kSlots = 32;
constexpr size_t kSlotBytes = kMostChunks * kMostChunkBytes;
constexpr TransferCarrier::Kind kKinds[] = {TransferCarrier::kIpc, TransferCarrier::kNccl};

struct Chunk {
  size_t source = 0;  // its place in the sender's memory
  size_t bytes = 0;
};
// They lie one behind the other in a slot.
using ChunkTransfer = std::vector<Chunk>;

size_t BytesOf(const ChunkTransfer& transfer) {
  size_t bytes = 0;
  for (const Chunk& chunk : transfer) bytes += chunk.bytes;
  return bytes;
}

// The same on both ends.
std::vector<ChunkTransfer> PlanTransfers(const ChunkLoad& load) {
  std::mt19937_64 dice(load.seed);
  std::vector<ChunkTransfer> transfers;
  for (int64_t left = load.chunks; left > 0; left -= std::ssize(transfers.back())) {
    const auto most = static_cast<uint64_t>(std::min<int64_t>(left, kMostChunks));
    ChunkTransfer& transfer = transfers.emplace_back(1 + dice() % most);
    for (Chunk& chunk : transfer) {
      chunk.bytes = kChunkAlignment * (1 + dice() % (kMostChunkBytes / kChunkAlignment));
      const size_t places = (kSourceBytes - chunk.bytes) / kChunkAlignment + 1;
      chunk.source = kChunkAlignment * (dice() % places);
    }
  }
  return transfers;
}

// Transfers are named by their index.
size_t SlotOf(uint64_t index) { return index % kSlots * kSlotBytes; }

absl::Status PostTransfer(TransferSender& end, const ChunkTransfer& transfer, uint64_t index) {
  std::vector<transport::SendRun> runs;
  size_t place = SlotOf(index);
  for (const Chunk& chunk : transfer) {
    runs.push_back({static_cast<int64_t>(place), {end.memory() + chunk.source, chunk.bytes}});
    place += chunk.bytes;
  }
  return end.Post(std::move(runs), index);
}

absl::Status PostAll(TransferSender& end, const std::vector<ChunkTransfer>& transfers) {
  size_t open = 0;
  for (size_t i = 0; i < transfers.size() || open > 0;) {
    if (i < transfers.size() && open < kSlots) {
      BATON_RETURN_IF_ERROR(PostTransfer(end, transfers[i], i));
      ++i;
      ++open;
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const size_t sent, end.Poll());
    open -= sent;
  }
  return absl::OkStatus();
}

class Receiver {
 public:
  explicit Receiver(const std::vector<ChunkTransfer>& transfers)
      : transfers_(transfers), source_(TransferSource(kSourceBytes)), found_(kSlotBytes) {}

  absl::Status Bring(const TransferLine& line) {
    BATON_ASSIGN_OR_RETURN(end_, TransferReceiver::Open(line, kSlots * kSlotBytes));
    return absl::OkStatus();
  }

  absl::Status Take(TransferCarrier::Kind kind) {
    for (uint64_t i = 0; i < std::min(kSlots, transfers_.size()); ++i) {
      BATON_RETURN_IF_ERROR(Announce(kind, i));
    }
    for (size_t taken = 0; taken < transfers_.size();) {
      const std::vector<transport::Completion> completions =
          end_->transport(kind).Poll(absl::Now() + kTransferPatience);
      if (completions.empty()) {
        return absl::DeadlineExceededError(absl::StrCat("nothing came after transfer ", taken));
      }
      for (const transport::Completion& completion : completions) {
        BATON_RETURN_IF_ERROR(Check(completion));
        if (completion.tag + kSlots < transfers_.size()) {
          BATON_RETURN_IF_ERROR(Announce(kind, completion.tag + kSlots));
        }
        ++taken;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Announce(TransferCarrier::Kind kind, uint64_t index) {
    std::vector<transport::ReceiveRun> runs;
    size_t place = SlotOf(index);
    for (const Chunk& chunk : transfers_[index]) {
      runs.push_back({static_cast<int64_t>(place), static_cast<int64_t>(chunk.bytes)});
      place += chunk.bytes;
    }
    return end_->transport(kind).Expect({.window = &end_->window(kind),
                                         .runs = std::move(runs),
                                         .transfer_id = index,
                                         .tag = index,
                                         .checksum = transport::Checksum::kWordSum});
  }

  absl::Status Check(const transport::Completion& completion) {
    BATON_RETURN_IF_ERROR(completion.status);
    const ChunkTransfer& transfer = transfers_[completion.tag];
    // The queue of ops, which knows nothing of transfers.
    BATON_RETURN_IF_ERROR(end_->space().Download(
        found_.data(), end_->memory() + SlotOf(completion.tag), BytesOf(transfer)));
    std::vector<std::span<const std::byte>> pieces;
    size_t place = 0;
    for (const Chunk& chunk : transfer) {
      const auto piece = std::as_bytes(std::span(source_)).subspan(chunk.source, chunk.bytes);
      if (std::memcmp(found_.data() + place, piece.data(), piece.size()) != 0) {
        return absl::DataLossError(absl::StrCat("transfer ",
                                                completion.tag,
                                                " is complete, and its bytes from ",
                                                place,
                                                " are others"));
      }
      place += chunk.bytes;
      pieces.push_back(piece);
    }
    BATON_ASSIGN_OR_RETURN(const uint64_t sum, AddWords(pieces));
    return sum == completion.checksum ? absl::OkStatus()
                                      : absl::DataLossError(absl::StrCat(
                                            "transfer ", completion.tag, " has another checksum"));
  }

  const std::vector<ChunkTransfer>& transfers_;
  const std::vector<uint64_t> source_;
  std::vector<std::byte> found_;
  std::unique_ptr<TransferReceiver> end_;
};

void Print(const TransferCarrier& carrier,
           const ChunkLoad& load,
           const std::vector<ChunkTransfer>& transfers,
           double seconds) {
  size_t bytes = 0;
  for (const ChunkTransfer& transfer : transfers) bytes += BytesOf(transfer);
  absl::PrintF(
      "{\"bench\":\"chunks\",\"carrier\":\"%s\",\"seed\":%d,\"chunks\":%d,\"transfers\":%d,"
      "\"bytes\":%d,\"seconds\":%.1f}\n",
      carrier.name(),
      load.seed,
      load.chunks,
      transfers.size(),
      bytes,
      seconds);
  std::fflush(stdout);
}

}  // namespace

absl::Status SendChunks(const TransferLine& line, const ChunkLoad& load) {
  const std::vector<ChunkTransfer> transfers = PlanTransfers(load);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<TransferSender> end,
                         TransferSender::Open(line, kSourceBytes));
  for (const TransferCarrier::Kind kind : kKinds) {
    const TransferCarrier carrier = {.kind = kind};
    BATON_RETURN_IF_ERROR(end->Connect(carrier));
    const absl::Time begin = absl::Now();
    line.Say("take");
    BATON_RETURN_IF_ERROR(PostAll(*end, transfers));
    if (line.Await() != std::vector<std::string>{"right"}) {
      return absl::DataLossError("the receiver did not find all chunks right");
    }
    Print(carrier, load, transfers, absl::ToDoubleSeconds(absl::Now() - begin));
  }
  return absl::OkStatus();
}

absl::Status ReceiveChunks(const TransferLine& line, const ChunkLoad& load) {
  const std::vector<ChunkTransfer> transfers = PlanTransfers(load);
  Receiver receiver(transfers);
  BATON_RETURN_IF_ERROR(receiver.Bring(line));
  for (const TransferCarrier::Kind kind : kKinds) {
    if (line.Await().empty()) {
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(receiver.Take(kind));
    line.Say("right");
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
