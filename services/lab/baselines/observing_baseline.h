// What baselines share that look at prompt queries before they encode.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/prompt_attention.h"

namespace baton::lab {

// Observes for a PromptAttention, which may serve other baselines of the same prompt too.
class ObservingBaseline : public Baseline {
 public:
  int64_t first_observed() const override { return attention_->first_observed(); }
  absl::Status Observe(const kv::WorkingKv& working,
                       const kv::PromptRows& rows,
                       const kv::KvQueries& queries) override {
    return attention_->Observe(this, working, rows, queries);
  }

 protected:
  ObservingBaseline(const BaselineSetup& setup,
                    int64_t capacity,
                    std::shared_ptr<PromptAttention> attention)
      : Baseline(setup, capacity), attention_(std::move(attention)) {}

  const PromptAttention& attention() const { return *attention_; }

 private:
  const std::shared_ptr<PromptAttention> attention_;
};

}  // namespace baton::lab
