#include "common/engine/staged_copies.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/engine/kv_sink.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/staged_window.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"

namespace baton::engine {

StagedCopies::StagedCopies(const kernels::ExecContext& exec, Copied copied)
    : exec_(exec), copied_(std::move(copied)) {
  if (exec_.copies != nullptr) {
    thread_ = std::thread([this] { ThreadMain(); });
  }
}

StagedCopies::~StagedCopies() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

absl::Status StagedCopies::Ship(const StepSequence& rows, ReadyKv ready) {
  BATON_RETURN_IF_ERROR(exec_.copies->Follow(exec_));
  if (rows.sequence->ships_in_place) {
    ready.device = &exec_.memory->landing();
  } else {
    BATON_RETURN_IF_ERROR(Download(*rows.sequence->staged, ready));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::CopyQueue::Mark> mark, exec_.copies->MakeMark());
  Push({.mark = std::move(mark), .sink = rows.ship.sink, .ready = std::move(ready)});
  return absl::OkStatus();
}

absl::Status StagedCopies::ShipCoded(const StepSequence& rows, int32_t kv_layer) {
  Entry coded = {.sink = rows.ship.sink};
  coded.ready.layer_begin = kv_layer;
  coded.ready.layer_end = kv_layer + 1;
  coded.ready.device = &exec_.memory->landing();
  coded.ready.encoded = true;
  BATON_ASSIGN_OR_RETURN(coded.coded,
                         rows.sequence->encoded->FollowCoding(*exec_.copies, kv_layer));
  BATON_ASSIGN_OR_RETURN(coded.mark, exec_.copies->MakeMark());
  Push(std::move(coded));
  return absl::OkStatus();
}

absl::Status StagedCopies::Download(const kv::StagedWindow& staged, ReadyKv& ready) {
  PieceReader<const std::byte> reader(ready.memory);
  std::vector<std::span<const std::byte>> copied;
  for (int32_t layer = ready.layer_begin; layer < ready.layer_end; ++layer) {
    std::span<std::byte> target = staged.pages(layer, ready.page_begin, ready.page_count);
    copied.emplace_back(target);
    while (!target.empty()) {
      const std::span<const std::byte> piece = reader.Next(target.size());
      BATON_CHECK(!piece.empty());
      BATON_RETURN_IF_ERROR(exec_.copies->StartDownload(target.data(), piece.data(), piece.size()));
      target = target.subspan(piece.size());
    }
  }
  ready.memory = std::move(copied);
  return absl::OkStatus();
}

// Copies of a step that failed may still be on their way, which the request's pages wait for.
absl::Status StagedCopies::EndStep(const Step& step) {
  for (const StepSequence& rows : step.sequences) {
    if (!ShipsBehind(rows)) {
      continue;
    }
    Entry end = {.request = rows.request};
    if (!step.status.ok()) {
      if (auto mark = exec_.copies->MakeMark(); mark.ok()) {
        end.mark = *std::move(mark);
      }
    }
    Push(std::move(end));
  }
  return exec_.copies == nullptr ? absl::OkStatus() : exec_.copies->Follow(exec_);
}

void StagedCopies::Land(Landing landing) {
  Entry landed = {.request = landing.request};
  landed.landing = std::move(landing);
  Push(std::move(landed));
}

absl::StatusOr<std::unique_ptr<kernels::CopyQueue::Mark>> StagedCopies::Move(
    const Landing& landing) {
  std::vector<kernels::CopyQueue::Piece> moves;
  for (const LandingPart& part : landing.parts) {
    landing.sequence->staged->AddMoves(part.layer, part.page_begin, part.targets, moves);
  }
  BATON_RETURN_IF_ERROR(exec_.copies->StartMoves(moves));
  return exec_.copies->MakeMark();
}

void StagedCopies::Push(Entry entry) {
  absl::MutexLock lock(&mutex_);
  under_way_.push_back(std::move(entry));
  wake_.Signal();
}

std::optional<StagedCopies::Entry> StagedCopies::Take() {
  absl::MutexLock lock(&mutex_);
  while (under_way_.empty() && !stopping_) {
    wake_.Wait(&mutex_);
  }
  if (under_way_.empty()) {
    return std::nullopt;
  }
  Entry entry = std::move(under_way_.front());
  under_way_.pop_front();
  return entry;
}

absl::Status StagedCopies::TellSink(Entry& entry) {
  if (entry.coded != nullptr) {
    BATON_ASSIGN_OR_RETURN(kv::EncodedLayer layer, entry.coded());
    entry.ready.page_count = layer.pages;
    entry.ready.memory = std::move(layer.memory);
  }
  if (entry.ready.page_count > 0) {
    entry.sink->LayersReady(std::move(entry.ready));
  }
  return absl::OkStatus();
}

absl::Status StagedCopies::Await(Entry& entry) {
  if (entry.landing.has_value()) {
    BATON_ASSIGN_OR_RETURN(entry.mark, Move(*entry.landing));
  }
  return entry.mark == nullptr ? absl::OkStatus() : entry.mark->Wait();
}

// A copy queue that has failed once is not trusted again: what comes behind is not there either.
void StagedCopies::ThreadMain() {
  absl::Status status;
  while (std::optional<Entry> entry = Take()) {
    status.Update(Await(*entry));
    if (entry->request != nullptr) {
      copied_(*entry->request, status);
    } else if (status.ok()) {
      status = TellSink(*entry);
    }
  }
}

}  // namespace baton::engine
