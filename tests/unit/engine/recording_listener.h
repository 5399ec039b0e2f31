// Remembers what the engine told about a request.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/request.h"

namespace baton::engine {

// Thread-safe. A second OnDone, or anything after OnDone, is counted as an error.
class RecordingListener final : public RequestListener {
 public:
  void OnPrefillProgress(int64_t done, int64_t) override {
    absl::MutexLock lock(&mutex_);
    errors_ += done_.has_value() ? 1 : 0;
    progress_.push_back(done);
  }
  void OnTokens(int32_t index, std::span<const TokenOutput> tokens) override {
    absl::MutexLock lock(&mutex_);
    errors_ += done_.has_value() || finishes_.contains(index) ? 1 : 0;
    for (const TokenOutput& token : tokens) {
      outputs_[index].push_back(token);
    }
  }
  void OnFinished(int32_t index, const SequenceFinish& finish) override {
    absl::MutexLock lock(&mutex_);
    errors_ += done_.has_value() || finishes_.contains(index) ? 1 : 0;
    finishes_[index] = finish;
  }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    absl::MutexLock lock(&mutex_);
    errors_ += done_.has_value() ? 1 : 0;
    done_ = status;
    stats_ = stats;
  }

  // False when the request has not ended after 30 s of real time.
  bool AwaitDone() const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &RecordingListener::Done),
                                   absl::Seconds(30));
  }
  bool AwaitTokens(size_t count) const {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      size_t total = 0;
      for (const auto& [index, outputs] : outputs_) {
        total += outputs.size();
      }
      return total >= count;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30));
  }
  bool done() const {
    absl::MutexLock lock(&mutex_);
    return done_.has_value();
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return done_.value_or(absl::UnknownError("not done"));
  }
  RequestStats stats() const {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }
  int errors() const {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }
  std::vector<int64_t> progress() const {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }
  std::vector<TokenOutput> outputs(int32_t index = 0) const {
    absl::MutexLock lock(&mutex_);
    const auto entry = outputs_.find(index);
    return entry == outputs_.end() ? std::vector<TokenOutput>{} : entry->second;
  }
  std::vector<int32_t> tokens(int32_t index = 0) const {
    std::vector<int32_t> ids;
    for (const TokenOutput& output : outputs(index)) {
      ids.push_back(output.token_id);
    }
    return ids;
  }
  std::optional<SequenceFinish> finish(int32_t index = 0) const {
    absl::MutexLock lock(&mutex_);
    const auto entry = finishes_.find(index);
    return entry == finishes_.end() ? std::nullopt : std::optional(entry->second);
  }

 private:
  bool Done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_.has_value(); }

  mutable absl::Mutex mutex_;
  std::vector<int64_t> progress_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::vector<TokenOutput>> outputs_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, SequenceFinish> finishes_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> done_ ABSL_GUARDED_BY(mutex_);
  RequestStats stats_ ABSL_GUARDED_BY(mutex_);
  int errors_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::engine
