// Joins a prefill engine to a decode engine of the same process.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "gtest/gtest.h"

#include "common/base/pieces.h"
#include "common/engine/engine.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "tests/unit/engine/granted_memory.h"

namespace baton::engine {

// Copies pages into a reservation as they become final, then commits to it; those of a device where
// the reservation is on one too, if `reads_devices`. `decode` must outlive it.
class CopySink final : public KvSink {
 public:
  CopySink(Engine& decode, ReservationGrant grant, bool reads_devices = false)
      : decode_(decode),
        grant_(std::move(grant)),
        reads_devices_(reads_devices && !grant_.landing->is_host()) {
    decode_.BeginAttempt(grant_.reservation_id, grant_.epoch, 1, [](const absl::Status&) {});
  }
  bool reads_devices() override { return reads_devices_; }
  void LayersReady(ReadyKv ready) override {
    const size_t page_bytes = BytesOf(ready.memory) /
                              static_cast<size_t>(ready.layer_end - ready.layer_begin) /
                              static_cast<size_t>(ready.page_count);
    PieceReader<const std::byte> reader(ready.memory);
    for (int32_t layer = ready.layer_begin; layer < ready.layer_end; ++layer) {
      for (int32_t page = 0; page < ready.page_count; ++page) {
        const auto source = reader.Next(page_bytes);
        std::byte* const target = GrantedPage(grant_, layer, ready.page_begin + page, page_bytes);
        EXPECT_TRUE((ready.device != nullptr ? grant_.landing->Pull(target, source)
                                             : grant_.landing->Write(target, source))
                        .ok());
        bytes_ += static_cast<int64_t>(source.size());
      }
    }
    EXPECT_TRUE(grant_.landing->Wait().ok());
    const int32_t page_end = ready.page_begin + ready.page_count;
    if (IsHidden(grant_, ready.layer_begin, page_bytes)) {
      decode_.HiddenLanded(grant_.reservation_id, grant_.epoch, 1, page_end);
    } else {
      decode_.PagesLanded(grant_.reservation_id,
                          grant_.epoch,
                          1,
                          {.layer_begin = ready.layer_begin,
                           .layer_end = ready.layer_end,
                           .page_begin = ready.page_begin,
                           .page_end = page_end});
    }
  }
  void Commit(CommitInfo info, std::function<void(absl::Status, int64_t)> done) override {
    info.kv_wire_bytes = bytes_;
    decode_.Commit(grant_.reservation_id,
                   grant_.epoch,
                   1,
                   std::move(info),
                   [done = std::move(done), bytes = bytes_.load()](absl::Status status) {
                     done(std::move(status), bytes);
                   });
  }
  void Abort(absl::Status, std::function<void()> released) override { released(); }

 private:
  Engine& decode_;
  ReservationGrant grant_;
  const bool reads_devices_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace baton::engine
