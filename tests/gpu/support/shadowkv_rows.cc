#include "tests/gpu/support/shadowkv_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

// Half a step of bf16 of the result, the rounding of weights to bf16, and reconstructed keys that
// round the other way.
constexpr double kOutTolerance = 8e-3;
constexpr double kLseTolerance = 2e-3;
constexpr size_t kReferenceWorkspace = size_t{32} << 20;
// e^logit: 0 for a cluster without tokens.
std::vector<float> Weights(std::vector<float> logits) {
  std::transform(logits.begin(), logits.end(), logits.begin(), [](float x) { return std::exp(x); });
  return logits;
}

}  // namespace

void ExpectSameResults(const ShadowKvResults& got, const ShadowKvResults& want) {
  ASSERT_EQ(got.ids, want.ids) << SeedMessage();
  ExpectNear(Weights(got.cluster_logits), Weights(want.cluster_logits), 1e-4);
  ExpectNear(got.out, want.out, kOutTolerance);
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], want.lse[i]) << i;
    } else {
      EXPECT_NEAR(got.lse[i], want.lse[i], kLseTolerance) << i;
    }
  }
  ASSERT_EQ(got.counters.size(), want.counters.size());
  for (size_t r = 0; r < want.counters.size(); ++r) {
    EXPECT_EQ(got.counters[r].hits, want.counters[r].hits);
    EXPECT_EQ(got.counters[r].misses, want.counters[r].misses);
    EXPECT_EQ(got.counters[r].attended_tokens, want.counters[r].attended_tokens);
  }
}

ShadowKvRows::ShadowKvRows(std::vector<ShadowKvSequence> host,
                           int64_t heads,
                           const ShadowKvRope& rope,
                           const float* bias)
    : host_(std::move(host)),
      heads_(heads),
      rope_(rope),
      device_rope_(rope, config().head_dim),
      bias_(bias),
      device_bias_(bias == nullptr ? std::vector<float>()
                                   : std::vector<float>(bias, bias + config().width())),
      reference_(ReferenceOps(), 1, kReferenceWorkspace) {
  for (const ShadowKvSequence& sequence : host_) {
    device_.push_back(std::make_unique<DeviceShadowKv>(sequence));
    const ShadowKvConfig& config = sequence.layout->config;
    id_stride_ = std::max(id_stride_, config.budget_chunks());
    cluster_stride_ = std::max<int64_t>(cluster_stride_, config.value_clusters);
  }
}

void ShadowKvRows::Update(std::vector<ShadowKvSequence> host) {
  host_ = std::move(host);
  for (size_t r = 0; r < host_.size(); ++r) device_[r]->Upload(host_[r]);
}

void ShadowKvRows::SetQueries(std::span<const float> q) { q_ = RoundedTo(q, DType::kBF16); }

ShadowKvResults ShadowKvRows::OnHost(const ShadowKvOthers& others) const {
  ShadowKvResults results = Begin(others);
  std::vector<ShadowKvSequence> sequences = host_;
  for (size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].row = row(s);
    sequences[s].counters = &results.counters[s];
  }
  ShadowKvSelectParams select = Select(sequences);
  select.q = q_.data();
  select.chunk_ids = results.ids.data();
  select.cluster_logits = results.cluster_logits.data();
  absl::Status status = ReferenceOps().shadowkv_select(*reference_, select);
  EXPECT_TRUE(status.ok()) << status;
  ShadowKvAttentionParams attend = Attend(sequences);
  attend.q = q_.data();
  attend.chunk_ids = results.ids.data();
  attend.cluster_logits = results.cluster_logits.data();
  attend.rope = rope_;
  attend.key_bias = bias_;
  attend.out = results.out.data();
  attend.lse = results.lse.empty() ? nullptr : results.lse.data();
  status = ReferenceOps().shadowkv_attention(*reference_, attend);
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

ShadowKvResults ShadowKvRows::OnDevice(const OpTable& ops,
                                       const ExecContext& context,
                                       const ShadowKvOthers& others,
                                       size_t used,
                                       bool cached) const {
  used = used == 0 ? host_.size() : used;
  ShadowKvResults results = Begin(others);
  const DeviceArray<ShadowKvCounters> counters(results.counters);
  std::vector<ShadowKvSequence> sequences;
  for (size_t s = 0; s < used; ++s) {
    sequences.push_back(device_[s]->get());
    sequences.back().row = row(s);
    sequences.back().counters = counters.data() + s;
    if (!cached || host_[s].cache == nullptr) sequences.back().cache = nullptr;
  }
  const DeviceArray<ShadowKvSequence> rows(sequences);
  const DeviceArray<uint16_t> q = Activations(q_);
  const auto ids = DeviceArray<int32_t>::Poisoned(results.ids.size());
  const auto logits = DeviceArray<float>::Poisoned(results.cluster_logits.size());
  const auto out = others.out.empty() ? DeviceArray<uint16_t>::Poisoned(results.out.size())
                                      : Activations(others.out);
  const DeviceArray<float> lse(results.lse);
  ShadowKvSelectParams select = Select(std::span(host_).first(used));
  select.sequences = rows.data();
  select.q = q.data();
  select.chunk_ids = ids.data();
  select.cluster_logits = cluster_stride_ > 0 ? logits.data() : nullptr;
  absl::Status status = ops.shadowkv_select(context, select);
  EXPECT_TRUE(status.ok()) << status;
  ShadowKvAttentionParams attend = Attend(std::span(host_).first(used));
  attend.sequences = rows.data();
  attend.q = q.data();
  attend.chunk_ids = ids.data();
  attend.cluster_logits = select.cluster_logits;
  attend.rope = device_rope_.get();
  attend.key_bias = bias_ == nullptr ? nullptr : device_bias_.data();
  attend.out = out.data();
  attend.lse = results.lse.empty() ? nullptr : lse.data();
  attend.bounds.cached = attend.bounds.cached && cached;
  status = ops.shadowkv_attention(context, attend);
  EXPECT_TRUE(status.ok()) << status;
  status = context.queue->Wait();
  EXPECT_TRUE(status.ok()) << status;
  return {.ids = ids.Get(),
          .cluster_logits = logits.Get(),
          .out = Widened(out),
          .lse = lse.Get(),
          .counters = counters.Get()};
}

void ShadowKvRows::CheckCaches() const {
  for (size_t r = 0; r < host_.size(); ++r) {
    if (host_[r].cache == nullptr) continue;
    const ShadowKvCacheLayout layout(host_[r].layout->config, ShadowKvCachedValues::kStored);
    const std::vector<std::byte> got = device_[r]->cache();
    EXPECT_TRUE(
        std::equal(got.begin(), got.begin() + static_cast<ptrdiff_t>(layout.keys), host_[r].cache))
        << "row " << r;
  }
}

ShadowKvResults ShadowKvRows::Begin(const ShadowKvOthers& others) const {
  const auto rows = static_cast<int64_t>(host_.size());
  ShadowKvResults results;
  results.ids.assign(static_cast<size_t>(rows * config().kv_heads * id_stride_), -7);
  results.cluster_logits.assign(static_cast<size_t>(rows * heads_ * cluster_stride_), NAN);
  results.out = others.out;
  if (others.out.empty()) results.out.assign(host_.size() * row_elements(), NAN);
  results.lse = others.lse;
  results.counters.resize(host_.size(), {.hits = 1, .misses = 2, .attended_tokens = 3});
  return results;
}

ShadowKvSelectParams ShadowKvRows::Select(std::span<const ShadowKvSequence> sequences) const {
  return {.q_stride = heads_ * config().head_dim,
          .sequences = sequences.data(),
          .num_sequences = static_cast<int64_t>(sequences.size()),
          .heads = heads_,
          .scale = scale(),
          .chunk_ids_stride = id_stride_,
          .cluster_stride = cluster_stride_,
          .bounds = BoundsOf(sequences)};
}

ShadowKvAttentionParams ShadowKvRows::Attend(std::span<const ShadowKvSequence> sequences) const {
  return {.q_stride = heads_ * config().head_dim,
          .sequences = sequences.data(),
          .num_sequences = static_cast<int64_t>(sequences.size()),
          .heads = heads_,
          .scale = scale(),
          .chunk_ids_stride = id_stride_,
          .cluster_stride = cluster_stride_,
          .rope = {},
          .out_stride = heads_ * config().head_dim,
          .bounds = BoundsOf(sequences)};
}

float ShadowKvRows::scale() const {
  return 1.0f / std::sqrt(static_cast<float>(config().head_dim));
}

ShadowKvProblems::ShadowKvProblems(const std::vector<ShadowKvShape>& shapes) {
  for (const ShadowKvShape& shape : shapes) {
    contexts_.push_back(std::make_unique<ShadowKvContext>(ReferenceOps(), 1, shape));
    problems_.push_back(
        std::make_unique<ShadowKvProblem>(ReferenceOps(), **contexts_.back(), shape));
  }
}

void ShadowKvProblems::Append() {
  for (size_t r = 0; r < problems_.size(); ++r) {
    problems_[r]->Append(ReferenceOps(), **contexts_[r]);
  }
}

std::vector<ShadowKvSequence> ShadowKvProblems::Sequences() const {
  std::vector<ShadowKvSequence> sequences;
  sequences.reserve(problems_.size());
  for (const auto& problem : problems_) sequences.push_back(problem->Sequence());
  return sequences;
}

std::vector<float> ShadowKvProblems::Queries() const {
  std::vector<float> q;
  for (const auto& problem : problems_) {
    const ShadowKvShape& shape = problem->shape();
    q.insert(q.end(), problem->query(), problem->query() + shape.heads * shape.config.head_dim);
  }
  return q;
}

ShadowKvRows ShadowKvProblems::MakeRows() const {
  const auto longest =
      std::max_element(problems_.begin(), problems_.end(), [](const auto& a, const auto& b) {
        return a->rope().positions < b->rope().positions;
      });
  return ShadowKvRows(Sequences(),
                      problems_.front()->shape().heads,
                      (*longest)->rope(),
                      problems_.front()->key_bias());
}

}  // namespace baton::kernels::cuda
