// Dense bf16 pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "tests/gpu/bench/model_capacity_case.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_pages.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

// Every step writes the last token of `tokens` again, as MeasureDecode does.
class DenseCapacityCase final : public CapacityCase {
 public:
  // Borrows the model.
  DenseCapacityCase(const LoadedModel& loaded, int32_t tokens)
      : loaded_(loaded), cost_(loaded.model.config()), tokens_(tokens) {}

  std::string format() const override { return "dense"; }
  int64_t kv_bytes() const override { return static_cast<int64_t>(cost_.KvBytes(1, tokens_)); }
  absl::Status Make(int32_t sequences) override;
  absl::Status Step() override { return sequences_->NextTokens(); }
  double read_bytes() const override { return cost_.KvBytes(count_, tokens_); }

 private:
  const LoadedModel& loaded_;
  const ModelCost cost_;
  const int32_t tokens_;
  int32_t count_ = 0;
  std::optional<ModelPages> pages_;
  std::optional<ModelSubject> subject_;
  std::optional<ModelSequences> sequences_;
};

}  // namespace baton::model
