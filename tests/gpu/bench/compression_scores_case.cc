#include "tests/gpu/bench/compression_scores_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240529;
constexpr int64_t kQueryWidth = int64_t{CompressionCase::kHeads} * CompressionCase::kHeadDim;

std::vector<int32_t> LastPositions(int32_t tokens, int64_t count) {
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), tokens - static_cast<int32_t>(count));
  return positions;
}

}  // namespace

CompressionScoresCase::CompressionScoresCase(int32_t tokens)
    : CompressionCase("attention_probabilities + accumulate_scores", tokens), prompt_(tokens) {}

absl::Status CompressionScoresCase::Prepare(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(prompt_.Upload(*context.queue));
  q_ = arena_.Allocate<uint16_t>(kQueries * kQueryWidth);
  positions_ = arena_.Upload(LastPositions(tokens(), kQueries));
  probabilities_ = arena_.Allocate<float>(kQueries * kKvHeads * tokens());
  scores_ = arena_.Allocate<float>(int64_t{kLayers} * kKvHeads * tokens());
  BATON_RETURN_IF_ERROR(arena_.status());
  BATON_RETURN_IF_ERROR(FillBf16(*context.queue, q_, kQueries * kQueryWidth, 2.0f, kSeed));
  return context.queue->Wait();
}

AttentionProbabilitiesParams CompressionScoresCase::Probabilities() const {
  AttentionProbabilitiesParams params;
  params.q_stride = kQueryWidth;
  params.rows = kQueries;
  params.heads = kHeads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  params.probability_stride = tokens();
  return params;
}

AccumulateScoresParams CompressionScoresCase::Scores() const {
  return {.probability_stride = tokens(),
          .rows = kQueries,
          .kv_heads = kKvHeads,
          .own = true,
          .score_stride = tokens()};
}

absl::Status CompressionScoresCase::Run(const ExecContext& context, int32_t layer) {
  AttentionProbabilitiesParams probabilities = Probabilities();
  probabilities.q = q_;
  probabilities.positions = positions_;
  probabilities.page_table = prompt_.table(layer);
  probabilities.pages = prompt_.pages();
  probabilities.probabilities = probabilities_;
  BATON_RETURN_IF_ERROR(CudaOps()->attention_probabilities(context, probabilities));
  AccumulateScoresParams scores = Scores();
  scores.probabilities = probabilities_;
  scores.positions = positions_;
  scores.scores = scores_ + int64_t{layer} * kKvHeads * tokens();
  return CudaOps()->accumulate_scores(context, scores);
}

absl::StatusOr<double> CompressionScoresCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const std::vector<float> got,
                         Downloaded(scores_, int64_t{kKvHeads} * tokens()));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> want, OnHost());
  double difference = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double here = std::fabs(double{got[i]} - double{want[i]});
    if (std::isnan(here)) return here;
    difference = std::max(difference, here);
  }
  return difference / double{*std::max_element(want.begin(), want.end())};
}

absl::StatusOr<std::vector<float>> CompressionScoresCase::OnHost() {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits, Downloaded(q_, kQueries * kQueryWidth));
  std::vector<float> q(bits.size());
  std::transform(bits.begin(), bits.end(), q.begin(), BF16ToF32);
  const std::vector<int32_t> positions = LastPositions(tokens(), kQueries);
  std::vector<float> of_queries(static_cast<size_t>(kQueries * kKvHeads * tokens()));
  std::vector<float> sums(static_cast<size_t>(kKvHeads) * static_cast<size_t>(tokens()));
  HostContext host;
  AttentionProbabilitiesParams probabilities = Probabilities();
  probabilities.q = q.data();
  probabilities.positions = positions.data();
  probabilities.page_table = prompt_.host_table();
  probabilities.pages = prompt_.host_pages();
  probabilities.probabilities = of_queries.data();
  BATON_RETURN_IF_ERROR(CpuOps().attention_probabilities(host.get(), probabilities));
  AccumulateScoresParams scores = Scores();
  scores.probabilities = of_queries.data();
  scores.positions = positions.data();
  scores.scores = sums.data();
  BATON_RETURN_IF_ERROR(CpuOps().accumulate_scores(host.get(), scores));
  return sums;
}

double CompressionScoresCase::bytes() const {
  constexpr double kTokenBytes = sizeof(uint16_t) * kWidth + sizeof(float) * kKvHeads;
  return kTokenBytes * tokens();
}

double CompressionScoresCase::operations() const {
  return 2.0 * kQueries * kHeads * kHeadDim * tokens();
}

}  // namespace baton::kernels::cuda
