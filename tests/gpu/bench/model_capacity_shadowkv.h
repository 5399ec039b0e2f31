// Format `shadowkv`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/model_capacity_case.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_shadowkv_kv.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::model {

// ShadowKvConfigOf, with values on the device in 4 bits or in the host's memory in 4 bits or bf16,
// and landmarks of bf16 or in 8 bits. Every sequence has a cache in every layer. They begin with 0
// to 63 generated tokens, so that in every step about a 64th of them has a block coded. Variants:
// of a step's chunks 0 and 0.6 are those of the step before.
class ShadowKvCapacityCase final : public CapacityCase {
 public:
  // Sequences have up to `tokens` tokens in the last step. Borrows the model.
  ShadowKvCapacityCase(const LoadedModel& loaded,
                       int32_t tokens,
                       const kernels::cuda::ShadowKvCodes& codes = {});

  // "shadowkv", "shadowkv_landmarks_int8", "shadowkv_host_v4" or "shadowkv_host_bf16".
  std::string format() const override;
  int64_t kv_bytes() const override { return ModelShadowKvKv::SequenceBytes(load_); }
  int64_t host_kv_bytes() const override { return ModelShadowKvKv::HostSequenceBytes(load_); }
  absl::Status Make(int32_t sequences) override;
  int32_t variants() const override { return 2; }
  absl::Status Begin(int32_t variant, ModelRow& row) override;
  absl::Status Step() override;
  // kInternal when caches had another share of the chunks than wanted.
  absl::Status End(ModelRow& row) override;
  double read_bytes() const override { return load_.layers * kv_->read_bytes(); }

 private:
  const LoadedModel& loaded_;
  kernels::cuda::ShadowKvLoad load_;
  std::unique_ptr<ModelShadowKvKv> kv_;
  std::optional<ModelDecodeSteps> steps_;
  double wanted_hits_ = 0.0;
  int32_t step_ = 0;                   // of the variant
  kernels::ShadowKvCounters counted_;  // before the first step that is timed
};

}  // namespace baton::model
