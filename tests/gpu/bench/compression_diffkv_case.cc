#include "tests/gpu/bench/compression_diffkv_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240530;
constexpr double kHighShare = 0.15;
// The policy that a worker has unless told otherwise.
constexpr DiffKvPolicy kPolicy = {.alpha_high = 1.0f, .alpha_low = 0.02f, .window = 64};

template <typename T>
int64_t CountDifferent(const T* got, const T* want, size_t count) {
  int64_t different = 0;
  for (size_t i = 0; i < count; ++i) different += got[i] == want[i] ? 0 : 1;
  return different;
}

// The pages of a layer in random order, over and over for `calls` calls: each takes all of them.
std::vector<int32_t> LeaseIds(int32_t pages, int32_t calls) {
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(kSeed));
  ids.reserve(ids.size() * static_cast<size_t>(calls));
  for (int32_t call = 1; call < calls; ++call)
    ids.insert(ids.end(), ids.begin(), ids.begin() + pages);
  return ids;
}

}  // namespace

CompressionDiffKvCase::CompressionDiffKvCase(int32_t tokens)
    : CompressionCase("diffkv_classify + diffkv_assign_pages + diffkv_encode", tokens),
      prompt_(tokens),
      geometry_({.kv_heads = kKvHeads, .head_dim = kHeadDim}) {}

int64_t CompressionDiffKvCase::high_tokens() const { return std::lround(kHighShare * tokens()); }

int32_t CompressionDiffKvCase::layer_pages() const {
  return kKvHeads * (geometry_.pages_for(kDiffKvHigh, high_tokens()) +
                     geometry_.pages_for(kDiffKvLow, tokens() - high_tokens()));
}

// Sums of kDiffKvWindowQueries probabilities, twice or half the threshold of the high tier, to
// which the window belongs whatever its scores.
std::vector<float> CompressionDiffKvCase::MakeScores() const {
  const float threshold = kPolicy.alpha_high * kDiffKvWindowQueries / static_cast<float>(tokens());
  std::mt19937 random(kSeed);
  std::vector<float> scores(static_cast<size_t>(head_tokens()), 0.5f * threshold);
  for (auto head = scores.begin(); head != scores.end(); head += tokens()) {
    std::fill_n(head, high_tokens() - kPolicy.window, 2.0f * threshold);
    std::shuffle(head, head + tokens() - kPolicy.window, random);
  }
  return scores;
}

absl::Status CompressionDiffKvCase::Prepare(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(prompt_.Upload(*context.queue));
  const std::vector<int32_t> ids = LeaseIds(layer_pages(), kMostLayerCalls);
  scores_ = arena_.Upload(MakeScores());
  classes_ = arena_.Allocate<DiffKvClass>(head_tokens());
  tables_ = arena_.Allocate<int32_t>(kLayers * kKvHeads * columns());
  counts_ = arena_.Allocate<int32_t>(kLayers * kKvHeads * kDiffKvTiers);
  pages_ = arena_.Allocate<std::byte>(kLayers * static_cast<int64_t>(page_bytes()));
  leases_ = arena_.Upload(std::vector<DiffKvLease>(
      kLayers, {.ids = arena_.Upload(ids), .count = static_cast<int32_t>(ids.size())}));
  return arena_.status();
}

CompressionDiffKvCase::Arrays CompressionDiffKvCase::OnDevice(int32_t layer) const {
  return {.scores = scores_,
          .classes = classes_,
          .table = tables_ + layer * kKvHeads * columns(),
          .counts = counts_ + int64_t{layer} * kKvHeads * kDiffKvTiers,
          .lease = leases_ + layer,
          .pages = pages_ + layer * static_cast<int64_t>(page_bytes()),
          .source = prompt_.pages(),
          .source_table = prompt_.table(layer)};
}

absl::Status CompressionDiffKvCase::Encode(const OpTable& ops,
                                           const ExecContext& context,
                                           const Arrays& arrays) const {
  const DiffKvLayer layer = {.page_table = arrays.table,
                             .token_counts = arrays.counts,
                             .columns = static_cast<int32_t>(columns())};
  BATON_RETURN_IF_ERROR(ops.diffkv_classify(context,
                                            {.scores = arrays.scores,
                                             .score_stride = tokens(),
                                             .tokens = tokens(),
                                             .kv_heads = kKvHeads,
                                             .policy = kPolicy,
                                             .classes = arrays.classes,
                                             .token_counts = arrays.counts}));
  BATON_RETURN_IF_ERROR(ops.diffkv_assign_pages(
      context, {.geometry = geometry_, .layer = layer, .lease = arrays.lease}));
  return ops.diffkv_encode(context,
                           {.source = arrays.source,
                            .source_table = arrays.source_table,
                            .tokens = tokens(),
                            .classes = arrays.classes,
                            .scores = arrays.scores,
                            .score_stride = tokens(),
                            .layer = layer,
                            .pages = {.base = arrays.pages, .geometry = geometry_}});
}

absl::Status CompressionDiffKvCase::Run(const ExecContext& context, int32_t layer) {
  return Encode(*CudaOps(), context, OnDevice(layer));
}

absl::StatusOr<double> CompressionDiffKvCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const int64_t different, CompareWithHost());
  return static_cast<double>(different);
}

absl::StatusOr<int64_t> CompressionDiffKvCase::CompareWithHost() {
  const std::vector<float> scores = MakeScores();
  const std::vector<int32_t> ids = LeaseIds(layer_pages(), 1);
  DiffKvLease lease = {.ids = ids.data(), .count = layer_pages()};
  std::vector<DiffKvClass> classes(scores.size());
  std::vector<int32_t> table(static_cast<size_t>(kKvHeads * columns()));
  std::vector<int32_t> counts(size_t{kKvHeads} * kDiffKvTiers);
  Buffer pages(page_bytes());
  HostContext host;
  BATON_RETURN_IF_ERROR(Encode(CpuOps(),
                               host.get(),
                               {.scores = scores.data(),
                                .classes = classes.data(),
                                .table = table.data(),
                                .counts = counts.data(),
                                .lease = &lease,
                                .pages = pages.data(),
                                .source = prompt_.host_pages(),
                                .source_table = prompt_.host_table()}));
  const auto count = [](const auto& got, const auto* want) {
    return CountDifferent(got.data(), want, got.size());
  };
  BATON_ASSIGN_OR_RETURN(const auto device_classes, Downloaded(classes_, head_tokens()));
  BATON_ASSIGN_OR_RETURN(const auto device_table, Downloaded(tables_, kKvHeads * columns()));
  BATON_ASSIGN_OR_RETURN(const auto device_counts, Downloaded(counts_, kKvHeads * kDiffKvTiers));
  BATON_ASSIGN_OR_RETURN(const auto device_pages,
                         Downloaded(pages_, static_cast<int64_t>(page_bytes())));
  return count(device_classes, classes.data()) + count(device_table, table.data()) +
         count(device_counts, counts.data()) + count(device_pages, pages.data());
}

double CompressionDiffKvCase::bytes() const {
  constexpr double kTokenBytes = 2 * sizeof(uint16_t) * kWidth + sizeof(float) * kKvHeads;
  return kTokenBytes * tokens() + static_cast<double>(page_bytes());
}

}  // namespace baton::kernels::cuda
