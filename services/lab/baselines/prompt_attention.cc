#include "services/lab/baselines/prompt_attention.h"

#include <algorithm>
#include <cstddef>
#include <numbers>
#include <span>

#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"
#include "kernels/ops/activations.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/token_store.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {
namespace {

// Query rows whose probabilities are in memory at a time.
constexpr int32_t kBlockRows = 64;
// Tokens of a task that adds probabilities up.
constexpr int64_t kSumTokens = 1024;

}  // namespace

PromptAttention::PromptAttention(const BaselineSetup& setup, int64_t first_observed)
    : setup_(setup),
      first_observed_(first_observed),
      sums_(static_cast<size_t>(setup.dimensions.layers) *
            static_cast<size_t>(setup.dimensions.kv_heads) *
            static_cast<size_t>(setup.prompt_tokens)) {}

size_t PromptAttention::SumsOffset(HeadId at) const {
  return static_cast<size_t>(at.kv_layer * setup_.dimensions.kv_heads + at.kv_head) *
         static_cast<size_t>(setup_.prompt_tokens);
}

std::span<const float> PromptAttention::Sums(HeadId at) const {
  return std::span(sums_).subspan(SumsOffset(at), static_cast<size_t>(setup_.prompt_tokens));
}

absl::Status PromptAttention::Observe(const void* observer,
                                      const kv::WorkingKv& working,
                                      const kv::PromptRows& rows,
                                      const kv::KvQueries& queries) {
  observer_ = observer_ == nullptr ? observer : observer_;
  if (observer != observer_ || rows.row_count == 0) {
    return absl::OkStatus();
  }
  keys_ = rows.positions[rows.row_count - 1] + 1;
  for (int32_t head = 0; head < setup_.dimensions.kv_heads; ++head) {
    const HeadId at = {.kv_layer = queries.kv_layer, .kv_head = head};
    BATON_RETURN_IF_ERROR(LoadKeys(working, at));
    for (int32_t begin = 0; begin < rows.row_count; begin += kBlockRows) {
      const kv::PromptRows block = {.row_begin = rows.row_begin + begin,
                                    .row_count = std::min(kBlockRows, rows.row_count - begin),
                                    .positions = rows.positions + begin,
                                    .op_positions = rows.op_positions + begin};
      BATON_RETURN_IF_ERROR(ObserveBlock(at, block, queries));
    }
  }
  return absl::OkStatus();
}

absl::Status PromptAttention::LoadKeys(const kv::WorkingKv& working, HeadId at) {
  const int64_t dim = setup_.dimensions.head_dim;
  key_rows_.resize(static_cast<size_t>(keys_ * dim));
  ReadTokens(working, at.kv_layer, at.kv_head, keys_, key_rows_, {});
  const size_t bytes = setup_.ops.packed_matrix_bytes(keys_, dim, kernels::DType::kF32);
  if (packed_keys_.size() < bytes) {
    packed_keys_ = kernels::Buffer(bytes);
  }
  return setup_.ops.pack_matrix(setup_.exec,
                                {.source = std::as_bytes(std::span(key_rows_)).data(),
                                 .out_features = keys_,
                                 .in_features = dim,
                                 .dtype = kernels::DType::kF32,
                                 .target = packed_keys_.data()});
}

absl::Status PromptAttention::ObserveBlock(HeadId at,
                                           const kv::PromptRows& rows,
                                           const kv::KvQueries& queries) {
  const int64_t dim = setup_.dimensions.head_dim;
  const int32_t group = queries.heads / setup_.dimensions.kv_heads;
  const int64_t lines = int64_t{rows.row_count} * group;
  queries_.resize(static_cast<size_t>(lines * dim));
  for (int64_t row = 0; row < rows.row_count; ++row) {
    const float* q = kernels::Floats(queries.q) + (rows.row_begin + row) * queries.q_stride +
                     at.kv_head * group * dim;
    std::transform(
        q, q + group * dim, &queries_[static_cast<size_t>(row * group * dim)], [&](float x) {
          return x * queries.scale * std::numbers::log2e_v<float>;
        });
  }
  scores_.resize(static_cast<size_t>(lines * keys_));
  BATON_RETURN_IF_ERROR(setup_.ops.matmul(setup_.exec,
                                          {.x = queries_.data(),
                                           .x_stride = dim,
                                           .weight = {.data = packed_keys_.data(),
                                                      .out_features = keys_,
                                                      .in_features = dim,
                                                      .dtype = kernels::DType::kF32},
                                           .rows = lines,
                                           .out = scores_.data(),
                                           .out_stride = keys_}));
  kernels::ThreadPool& pool = *setup_.exec.pool;
  pool.ParallelFor(rows.row_count, [&](int64_t row, int /*thread*/) {
    Normalize(group, row, rows.positions[row]);
  });
  float* sums = &sums_[SumsOffset(at)];
  pool.ParallelFor((keys_ + kSumTokens - 1) / kSumTokens, [&](int64_t index, int /*thread*/) {
    for (int64_t row = 0; row < rows.row_count; ++row) {
      const int64_t end = std::min<int64_t>((index + 1) * kSumTokens, rows.positions[row] + 1);
      const float* probabilities = &scores_[static_cast<size_t>(row * group * keys_)];
      for (int64_t token = index * kSumTokens; token < end; ++token) {
        sums[token] += probabilities[token];
      }
    }
  });
  return absl::OkStatus();
}

void PromptAttention::Normalize(int32_t group, int64_t row, int32_t position) {
  const auto tokens = static_cast<size_t>(position) + 1;
  float* first = &scores_[static_cast<size_t>(row * group * keys_)];
  for (int32_t member = 0; member < group; ++member) {
    float* line = first + member * keys_;
    const float inverse = 1.0f / Exp2FromMax({line, tokens});
    for (size_t token = 0; token < tokens; ++token) {
      const float probability = line[token] * inverse;
      first[token] = member == 0 ? probability : std::max(first[token], probability);
    }
  }
}

}  // namespace baton::lab
