#include "services/lab/eval/collector.h"

#include "absl/time/clock.h"

namespace baton::lab {

void Collector::OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) {
  absl::MutexLock lock(&mutex_);
  MarkFirstToken();
  for (const engine::TokenOutput& token : tokens) {
    if (sequence_index == 0) {
      token_ids_.push_back(token.token_id);
    }
  }
}

void Collector::OnFinished(int32_t /*sequence_index*/, const engine::SequenceFinish& /*finish*/) {
  absl::MutexLock lock(&mutex_);
  MarkFirstToken();
}

void Collector::OnDone(const absl::Status& status, const engine::RequestStats& stats) {
  absl::MutexLock lock(&mutex_);
  status_ = status;
  stats_ = stats;
}

absl::StatusOr<engine::RequestStats> Collector::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](std::optional<absl::Status>* status) { return status->has_value(); }, &status_));
  if (!status_->ok()) {
    return *status_;
  }
  return stats_;
}

std::vector<int32_t> Collector::token_ids() const {
  absl::MutexLock lock(&mutex_);
  return token_ids_;
}

std::optional<absl::Time> Collector::first_token_time() const {
  absl::MutexLock lock(&mutex_);
  return first_token_time_;
}

void Collector::MarkFirstToken() {
  if (!first_token_time_.has_value()) {
    first_token_time_ = absl::Now();
  }
}

}  // namespace baton::lab
