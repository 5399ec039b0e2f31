// Prompts on a decode worker whose bytes come as a test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/await_status.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/granted_memory.h"
#include "tests/unit/engine/host_answer.h"
#include "tests/unit/engine/placed_engine.h"
#include "tests/unit/engine/recording_listener.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {

// Whether the engine hears at once of pages that have landed.
enum class Told { kAtOnce, kLater };

// A prompt on a decode worker, whose bytes come as the test says.
class LandingPrompt {
 public:
  LandingPrompt(Engine& decode,
                const ReserveRequest& request,
                const SinkLog& sent,
                std::shared_ptr<RequestListener> told = nullptr)
      : decode_(decode), sent_(sent.pages()) {
    auto grant = AwaitGrant(decode, request, told != nullptr ? std::move(told) : listener);
    EXPECT_TRUE(grant.ok()) << grant.status();
    grant_ = *std::move(grant);
  }

  const ReservationGrant& grant() const { return grant_; }
  absl::Status Begin(uint32_t attempt) const {
    return AwaitStatus([&](Engine::StatusCallback done) {
      decode_.BeginAttempt(grant_.reservation_id, grant_.epoch, attempt, std::move(done));
    });
  }
  // Pages of hidden states, up to `end`, land, or others in their place; then the engine is told.
  void LandHidden(uint32_t attempt, int32_t end, bool damaged = false) const {
    Land(
        [&](int32_t layer, int32_t page, size_t page_bytes) {
          return IsHidden(grant_, layer, page_bytes) && page < end;
        },
        damaged);
    decode_.HiddenLanded(grant_.reservation_id, grant_.epoch, attempt, end);
  }
  // Pages of the layers [begin, end), which are not hidden states, land; then the engine is told,
  // if it is to be.
  void LandLayers(uint32_t attempt,
                  int32_t begin,
                  int32_t end,
                  Told told = Told::kLater,
                  bool damaged = false) const {
    std::map<int32_t, int32_t> pages;
    Land(
        [&](int32_t layer, int32_t page, size_t page_bytes) {
          const bool lands = begin <= layer && layer < end && !IsHidden(grant_, layer, page_bytes);
          if (lands) pages[layer] = std::max(pages[layer], page + 1);
          return lands;
        },
        damaged);
    for (const auto& [layer, count] : pages) {
      if (told == Told::kAtOnce)
        TellPages(
            attempt,
            {.layer_begin = layer, .layer_end = layer + 1, .page_begin = 0, .page_end = count});
    }
  }
  void TellPages(uint32_t attempt, const LandedPages& pages) const {
    decode_.PagesLanded(grant_.reservation_id, grant_.epoch, attempt, pages);
  }
  // Of the layers [begin, end).
  int64_t bytes(int32_t begin, int32_t end) const {
    int64_t bytes = 0;
    for (const auto& [key, page] : sent_) {
      if (begin <= key.first && key.first < end) bytes += static_cast<int64_t>(page.copy.size());
    }
    return bytes;
  }
  int32_t pages(int32_t layer) const {
    return static_cast<int32_t>(std::ranges::count_if(
        sent_, [&](const auto& entry) { return entry.first.first == layer; }));
  }
  int32_t layers() const { return sent_.rbegin()->first.first + 1; }
  void LandAll() const {
    Land([](int32_t /*layer*/, int32_t /*page*/, size_t /*page_bytes*/) { return true; }, false);
  }
  absl::Status Commit(uint32_t attempt, const CommitInfo& info) const {
    return AwaitStatus([&](Engine::StatusCallback done) {
      decode_.Commit(grant_.reservation_id, grant_.epoch, attempt, info, std::move(done));
    });
  }

  const std::shared_ptr<RecordingListener> listener = std::make_shared<RecordingListener>();

 private:
  template <typename Wanted>
  void Land(const Wanted& wanted, bool damaged) const {
    for (const auto& [key, page] : sent_) {
      const auto [layer, index] = key;
      const size_t page_bytes = page.copy.size();
      if (wanted(layer, index, page_bytes)) {
        const std::vector<std::byte> bytes =
            damaged ? std::vector<std::byte>(page_bytes, std::byte{0x3c}) : page.copy;
        std::byte* const target = GrantedPage(grant_, layer, index, page_bytes);
        EXPECT_TRUE(grant_.landing->Write(target, bytes).ok());
        EXPECT_TRUE(grant_.landing->Wait().ok());
      }
    }
  }

  Engine& decode_;
  const std::map<std::pair<int32_t, int32_t>, SinkLog::Page> sent_;
  ReservationGrant grant_;
};

// Commits a prompt that has landed: with its first tokens it gives the answer, and everything back.
inline void ExpectCommitted(const PlacedEngine& decode,
                            const LandingPrompt& prompt,
                            uint32_t attempt,
                            const CommitInfo& info,
                            std::vector<int32_t> first,
                            const HostAnswer& want) {
  const absl::Status committed = prompt.Commit(attempt, info);
  EXPECT_TRUE(committed.ok()) << committed;
  EXPECT_TRUE(prompt.listener->AwaitDone());
  EXPECT_TRUE(prompt.listener->status().ok()) << prompt.listener->status();
  const std::vector<int32_t> rest = prompt.listener->tokens();
  first.insert(first.end(), rest.begin(), rest.end());
  EXPECT_EQ(first, want.tokens);
  EXPECT_EQ(prompt.listener->stats().kv_resident_bytes, want.resident_bytes);
  decode.ExpectFree();
}

// Computes MakeRequest(policy, 0) and ships it to `log`; returns its first token.
inline std::vector<int32_t> PrefillToLog(const checkpoint::Checkpoint& checkpoint,
                                         const std::string& policy,
                                         int32_t chunk,
                                         const std::shared_ptr<SinkLog>& log) {
  const PlacedEngine prefill(checkpoint, Role::kPrefill, Place::kHost, chunk);
  const auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request = MakeRequest(policy, 0);
  request.sink = std::make_unique<FakeSink>(log);
  EXPECT_TRUE(prefill.engine().Submit(std::move(request), listener).ok());
  EXPECT_TRUE(listener->AwaitDone());
  return listener->tokens();
}

}  // namespace baton::engine
