// Scores of a prompt's tokens by its last queries, as format `diffkv` takes them: ops
// `attention_probabilities` and `accumulate_scores`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/compression_prompt.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// kDiffKvWindowQueries queries whose log-sum-exps nobody kept.
class CompressionScoresCase : public CompressionCase {
 public:
  explicit CompressionScoresCase(int32_t tokens);

  absl::Status Prepare(const ExecContext& context) override;
  // Of the scores, relative to the largest.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer) override;
  // Keys and scores.
  double bytes() const override;
  // Of queries and keys, each pair once.
  double operations() const override;

 private:
  static constexpr int64_t kQueries = kDiffKvWindowQueries;

  // Without pointers.
  AttentionProbabilitiesParams Probabilities() const;
  AccumulateScoresParams Scores() const;
  absl::StatusOr<std::vector<float>> OnHost();

  CompressionPrompt prompt_;
  DeviceArena arena_;
  uint16_t* q_ = nullptr;           // [queries][heads][head_dim]
  int32_t* positions_ = nullptr;    // [queries]
  float* probabilities_ = nullptr;  // [queries][kv_heads][tokens]
  float* scores_ = nullptr;         // [layers][kv_heads][tokens]
};

}  // namespace baton::kernels::cuda
