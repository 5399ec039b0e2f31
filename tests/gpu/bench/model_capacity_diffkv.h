// Format `diffkv`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/model_capacity_case.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_diffkv_kv.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"

namespace baton::model {

// 15 % of the prompt's tokens in K8V4, 85 % in K4V2; the policy looks at a 16th of the sequences in
// every step (`every=16`). Variants: `scored_every` 16, those sequences alone are scored in that
// step, and 1, all are in every step.
class DiffKvCapacityCase final : public CapacityCase {
 public:
  // Sequences reach `tokens` tokens in the last step. Borrows the model.
  DiffKvCapacityCase(const LoadedModel& loaded, int32_t tokens);

  std::string format() const override { return "diffkv"; }
  int64_t kv_bytes() const override;
  absl::Status Make(int32_t sequences) override;
  int32_t variants() const override { return 2; }
  absl::Status Begin(int32_t variant, ModelRow& row) override;
  absl::Status Step() override { return steps_->NextTokens(*kv_); }
  absl::Status End(ModelRow& /*row*/) override { return kv_->CheckAppended(); }
  double read_bytes() const override { return load_.layers * load_.read_bytes(); }

 private:
  const LoadedModel& loaded_;
  kernels::cuda::DiffKvLoad load_;
  std::unique_ptr<ModelDiffKvKv> kv_;
  std::optional<ModelDecodeSteps> steps_;
};

}  // namespace baton::model
