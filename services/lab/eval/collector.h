// Collects a request's events until it has ended.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/engine/request.h"

namespace baton::lab {

// Thread-safe. Remembers the tokens of sequence 0.
class Collector : public engine::RequestListener {
 public:
  void OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) override;
  void OnFinished(int32_t sequence_index, const engine::SequenceFinish& finish) override;
  void OnDone(const absl::Status& status, const engine::RequestStats& stats) override;

  // Blocks until OnDone; its statistics, or why the request failed.
  absl::StatusOr<engine::RequestStats> Wait();
  std::vector<int32_t> token_ids() const;
  // When the first token came (also a stop token); unset without one.
  std::optional<absl::Time> first_token_time() const;

 private:
  void MarkFirstToken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<int32_t> token_ids_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> first_token_time_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  engine::RequestStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::lab
