#include "common/kv/codec/diffkv/diffkv_sequence.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/diffkv/coded_pages.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_device_arrays.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {

using kernels::kDiffKvHigh;
using kernels::kDiffKvTiers;

DiffKvPagePlan PlanDiffKvPages(const kernels::DiffKvGeometry& geometry,
                               int32_t layers,
                               int64_t prompt_tokens,
                               int64_t max_tokens) {
  const int32_t heads = geometry.kv_heads;
  return {.layers = layers,
          .prompt_pages_per_layer = heads * (geometry.pages_for(kDiffKvHigh, prompt_tokens) + 1),
          .growth_pages_per_layer =
              max_tokens == 0 ? 0 : heads * (geometry.pages_for(kDiffKvHigh, max_tokens) + 1)};
}

DiffKvSequence::DiffKvSequence(DiffKvCodec& codec,
                               const DiffKvSettings& settings,
                               int64_t prompt_tokens,
                               int64_t max_tokens,
                               std::vector<PageId> ids,
                               std::unique_ptr<DiffKvDeviceArrays> device)
    : codec_(codec),
      settings_(settings),
      prompt_tokens_(prompt_tokens),
      max_tokens_(max_tokens),
      plan_(PlanDiffKvPages(
          codec.geometry(), codec.context().dimensions.layers, prompt_tokens, max_tokens)),
      layers_(plan_.layers),
      kv_heads_(codec.geometry().kv_heads),
      columns_(codec.geometry().columns_for(prompt_tokens + max_tokens)),
      owned_(std::move(ids)),
      lease_ids_(owned_),
      device_(std::move(device)),
      encode_turn_(device_ == nullptr ? 0 : codec.NextEncodeTurn()),
      held_(layers_, prompt_tokens) {
  BATON_CHECK(static_cast<int64_t>(owned_.size()) == plan_.pages());
  const auto heads = static_cast<size_t>(kv_heads_);
  const size_t tables = static_cast<size_t>(layers_) * heads;
  token_counts_.resize(tables * kDiffKvTiers);
  if (device_ == nullptr) {
    page_table_.resize(tables * static_cast<size_t>(columns_), kNoPage);
    actions_.resize(tables);
    probabilities_.resize(heads * static_cast<size_t>(probability_stride()));
  }
  PointLease();
  unobserved_.push_back(kernels::DiffKvUnobserved(0, static_cast<int32_t>(prompt_tokens)));
  AddUnobservedGenerated();
}

void DiffKvSequence::AddUnobservedGenerated() {
  if (settings_.every == 1) {
    return;
  }
  unobserved_.push_back(
      {.begin = static_cast<int32_t>(prompt_tokens_),
       .end = INT32_MAX,
       .observed_shift = std::countr_zero(static_cast<uint32_t>(settings_.every))});
}

DiffKvSequence::~DiffKvSequence() { codec_.pool().ReleaseAll(owned_); }

absl::Status DiffKvSequence::PrepareStep() {
  extension_tiles_.clear();
  if (device_ == nullptr) {
    return absl::OkStatus();
  }
  kernels::MemorySpace& space = *codec_.context().exec.memory;
  if (before_extension_ != nullptr) {
    BATON_RETURN_IF_ERROR(TakeOver());
  }
  if (!filled_) {
    BATON_RETURN_IF_ERROR(device_->Fill(space, token_counts_, lease_ids_, unobserved_, {}));
    filled_ = true;
    lease_limited_ = true;
    if (landed_) {
      BATON_RETURN_IF_ERROR(AssignLandedPages());
    }
  }
  if (!lease_limited_) {
    BATON_RETURN_IF_ERROR(device_->LimitLease(space, lease_.count));
    lease_limited_ = true;
  }
  return held_.tokens() - fetched_tokens_ >= kFetchedTokens ? Fetch() : absl::OkStatus();
}

absl::Status DiffKvSequence::Fetch() {
  BATON_RETURN_IF_ERROR(device_->Fetch(*codec_.context().exec.memory, token_counts_, lease_.used));
  fetched_tokens_ = held_.tokens();
  return absl::OkStatus();
}

void DiffKvSequence::PointLease() {
  lease_.ids = lease_ids_.data();
  lease_.count = static_cast<int32_t>(lease_ids_.size());
}

kernels::DiffKvLayer DiffKvSequence::layer(int32_t kv_layer) {
  const int64_t first_head = int64_t{kv_layer} * kv_heads_;
  int32_t* const table = device_ == nullptr ? page_table_.data() : device_->page_table();
  int32_t* const counts = device_ == nullptr ? token_counts_.data() : device_->token_counts();
  return {.page_table = table + first_head * columns_,
          .token_counts = counts + first_head * kDiffKvTiers,
          .columns = columns_};
}

KvFloor DiffKvSequence::floor(int32_t kv_layer) const {
  const KvCalibration* calibration = codec_.context().calibration.get();
  return calibration == nullptr ? KvFloor::kNone : calibration->floor(kv_layer);
}

// Mean scores are sums of probabilities, so none is below a threshold of 0: without the lower one
// nothing is pruned, without both nothing leaves the high tier.
kernels::DiffKvPolicy DiffKvSequence::policy(int32_t kv_layer) const {
  kernels::DiffKvPolicy policy = settings_.policy;
  policy.unobserved = device_ == nullptr ? unobserved_.data() : device_->unobserved();
  policy.unobserved_count = static_cast<int32_t>(unobserved_.size());
  switch (floor(kv_layer)) {
    case KvFloor::kHigh:
      policy.alpha_high = 0.0f;
      [[fallthrough]];
    case KvFloor::kLow:
      policy.alpha_low = 0.0f;
      break;
    case KvFloor::kNone:
      break;
  }
  return policy;
}

std::span<const int32_t> DiffKvSequence::TierTokens(int32_t kv_layer) const {
  const auto per_layer = static_cast<size_t>(kv_heads_) * kDiffKvTiers;
  return std::span(token_counts_).subspan(static_cast<size_t>(kv_layer) * per_layer, per_layer);
}

void DiffKvSequence::CountAttention(int32_t kv_layer) {
  counters_.heads += kv_heads_;
  for (const int32_t tokens : TierTokens(kv_layer)) {
    counters_.attended_tokens += tokens;
  }
}

float* DiffKvSequence::scores(int32_t kv_layer) {
  const size_t per_layer = static_cast<size_t>(kv_heads_) * static_cast<size_t>(new_tokens());
  if (placed_scores_ != nullptr && kv_layer >= placed_layer_begin_) {
    return placed_scores_ + static_cast<size_t>(kv_layer - placed_layer_begin_) * per_layer;
  }
  if (device_ != nullptr) {
    return device_->scores() + static_cast<size_t>(kv_layer) * per_layer;
  }
  if (scores_.empty()) {
    scores_.resize(static_cast<size_t>(layers_) * per_layer);
  }
  return scores_.data() + static_cast<size_t>(kv_layer) * per_layer;
}

kernels::DiffKvClass* DiffKvSequence::classes() {
  if (device_ != nullptr) {
    return device_->classes();
  }
  classes_.resize(static_cast<size_t>(kv_heads_) * static_cast<size_t>(new_tokens()));
  return classes_.data();
}

absl::StatusOr<float*> DiffKvSequence::SharedProbabilities(size_t floats) {
  if (device_ != nullptr) {
    return device_->SharedProbabilities(codec_.blocks(), floats);
  }
  shared_probabilities_.resize(floats);
  return shared_probabilities_.data();
}

void DiffKvSequence::PlaceWindowScores(int32_t layer_begin, float* scores) {
  placed_layer_begin_ = layer_begin;
  placed_scores_ = scores;
}

absl::Status DiffKvSequence::AwaitObservation() {
  return std::exchange(observing_aside_, false) ? codec_.AwaitEncoding(encode_turn_)
                                                : absl::OkStatus();
}

absl::Status DiffKvSequence::LeaveLayer(int32_t /*kv_layer*/) { return AwaitObservation(); }

int64_t DiffKvSequence::first_observed() const {
  return settings_.policy.scoring == kernels::DiffKvScoring::kAllLater
             ? extension_begin_
             : std::max<int64_t>(extension_begin_, prompt_tokens_ - kernels::kDiffKvWindowQueries);
}

absl::Status DiffKvSequence::EncodeLayer(const WorkingKv& working, int32_t kv_layer) {
  const kernels::DiffKvLayer target = layer(kv_layer);
  const kernels::OpTable& ops = *codec_.context().ops;
  BATON_RETURN_IF_ERROR(AwaitObservation());
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, codec_.ExecToEncode(encode_turn_));
  const int32_t* const held = extension_begin_ == 0
                                  ? nullptr
                                  : op_held_counts_ + int64_t{kv_layer} * kv_heads_ * kDiffKvTiers;
  kernels::DiffKvClass* const token_classes = classes();
  BATON_RETURN_IF_ERROR(ops.diffkv_classify(exec,
                                            {.scores = scores(kv_layer),
                                             .score_stride = new_tokens(),
                                             .first_token = extension_begin_,
                                             .tokens = prompt_tokens_,
                                             .kv_heads = kv_heads_,
                                             .policy = policy(kv_layer),
                                             .held = held,
                                             .classes = token_classes,
                                             .token_counts = target.token_counts}));
  BATON_RETURN_IF_ERROR(ops.diffkv_assign_pages(
      exec, {.geometry = codec_.geometry(), .layer = target, .held = held, .lease = op_lease()}));
  BATON_RETURN_IF_ERROR(ops.diffkv_encode(
      exec,
      {.source = working.pages,
       .source_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
       .first_token = extension_begin_,
       .tokens = prompt_tokens_,
       .classes = token_classes,
       .scores = scores(kv_layer),
       .score_stride = new_tokens(),
       .held = held,
       .layer = target,
       .pages = codec_.pages()}));
  held_.TakeLayers(1);
  if (device_ != nullptr) {
    coded_.push_back(kv_layer);
  }
  return absl::OkStatus();
}

absl::Status DiffKvSequence::Settle() {
  if (device_ == nullptr) {
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(codec_.AwaitEncoding(encode_turn_));
  return Fetch();
}

PageId DiffKvSequence::PageAt(int32_t kv_layer, int32_t head, int32_t tier, int32_t index) const {
  const auto table =
      static_cast<size_t>(kv_layer) * static_cast<size_t>(kv_heads_) + static_cast<size_t>(head);
  const int32_t column = tier == kDiffKvHigh ? index : columns_ - 1 - index;
  return page_table_[table * static_cast<size_t>(columns_) + static_cast<size_t>(column)];
}

std::vector<PageId> DiffKvSequence::PagesFromLease(int32_t kv_layer) const {
  auto begin = lease_ids_.begin();
  for (const int32_t layer : coded_) {
    const int32_t pages = codec_.PagesOf(TierTokens(layer));
    if (layer == kv_layer) {
      return {begin, begin + pages};
    }
    begin += pages;
  }
  return {};
}

std::vector<PageId> DiffKvSequence::PagesInOrder(int32_t kv_layer) const {
  if (device_ != nullptr) {
    return PagesFromLease(kv_layer);
  }
  const std::span<const int32_t> counts = TierTokens(kv_layer);
  std::vector<PageId> ids;
  for (int32_t head = 0; head < kv_heads_; ++head) {
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t pages = codec_.geometry().pages_for(
          tier, counts[static_cast<size_t>(int64_t{head} * kDiffKvTiers + tier)]);
      for (int32_t i = 0; i < pages; ++i) {
        ids.push_back(PageAt(kv_layer, head, tier, i));
      }
    }
  }
  return ids;
}

EncodedLayer DiffKvSequence::LayerPages(int32_t kv_layer) const {
  return codec_.LayerOf(PagesInOrder(kv_layer));
}

absl::StatusOr<CodedLayer> DiffKvSequence::FollowCoding(kernels::CopyQueue& copies,
                                                        int32_t kv_layer) {
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, codec_.ExecToEncode(encode_turn_));
  BATON_RETURN_IF_ERROR(copies.Follow(exec));
  if (coded_pages_ == nullptr) {
    coded_pages_ = std::make_shared<DiffKvCodedPages>(codec_, lease_ids_);
  }
  return
      [pages = coded_pages_, counts = layer(kv_layer).token_counts] { return pages->Next(counts); };
}

void DiffKvSequence::Trim() {
  // Kept: what is in page tables, and room for what is still to be generated.
  const int64_t unused = lease_.count - lease_.used;
  const int64_t growth = int64_t{layers_} * plan_.growth_pages_per_layer;
  GiveBackUnused(std::max<int64_t>(0, unused - growth));
  ForgetPrompt();
}

void DiffKvSequence::ForgetPrompt() {
  if (device_ != nullptr) {
    device_->ForgetPrompt();
  }
  scores_ = {};
  placed_scores_ = nullptr;
  shared_probabilities_ = {};
  stored_probabilities_ = {};
  row_lses_ = {};
  classes_ = {};
}

// The copy has a prompt that lands.
absl::Status DiffKvSequence::CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const {
  if (extension_begin_ > 0) {
    return absl::UnimplementedError("diffkv: a sequence that was extended can't be copied");
  }
  auto& target = static_cast<DiffKvSequence&>(other);
  BATON_RETURN_IF_ERROR(target.Adopt(State(), layers_));
  PageCopies& pages = copies.emplace_back(codec_.pool().base(), codec_.pool().stride_bytes());
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    pages.Add(PagesInOrder(kv_layer), target.PagesInOrder(kv_layer));
  }
  return absl::OkStatus();
}

int64_t DiffKvSequence::ResidentBytes() const {
  const int64_t tables = int64_t{layers_} * kv_heads_ * (columns_ + kDiffKvTiers) *
                         static_cast<int64_t>(sizeof(int32_t));
  return codec_.PagesOf(token_counts_) * static_cast<int64_t>(codec_.geometry().page_bytes()) +
         tables;
}

int64_t DiffKvSequence::ReservedBytes() const {
  return static_cast<int64_t>(owned_.size()) * static_cast<int64_t>(codec_.geometry().page_bytes());
}

}  // namespace baton::kv
