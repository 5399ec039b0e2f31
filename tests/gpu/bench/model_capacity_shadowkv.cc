#include "tests/gpu/bench/model_capacity_shadowkv.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/model/forward.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_shadowkv_kv.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::model {
namespace {

constexpr double kHits[] = {0.0, 0.6};

// Generated tokens that sequences begin with are spread over the steps from one coded block to the
// next.
constexpr auto kPhases = static_cast<int32_t>(kernels::kShadowKvBlockTokens);

}  // namespace

ShadowKvCapacityCase::ShadowKvCapacityCase(const LoadedModel& loaded,
                                           int32_t tokens,
                                           const kernels::cuda::ShadowKvCodes& codes)
    : loaded_(loaded) {
  const KvShape shape = loaded.model.kv_shape();
  constexpr int32_t kGenerated = kPhases + kPoolSteps;
  load_ = {.layout = {kernels::cuda::ShadowKvConfigOf(shape.kv_heads, shape.head_dim, codes),
                      tokens - kGenerated},
           .layers = shape.layers,
           .max_generated = kGenerated};
}

std::string ShadowKvCapacityCase::format() const {
  const kernels::ShadowKvConfig& config = load_.config();
  if (!config.values_apart) {
    return config.quantized_landmarks() ? "shadowkv_landmarks_int8" : "shadowkv";
  }
  return config.quantized_values() ? "shadowkv_host_v4" : "shadowkv_host_bf16";
}

absl::Status ShadowKvCapacityCase::Make(int32_t sequences) {
  load_.rows = sequences;
  BATON_ASSIGN_OR_RETURN(kv_, ModelShadowKvKv::Create(loaded_, load_));
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(sequences));
  for (int32_t row = 0; row < sequences; ++row) {
    positions.push_back(load_.position() + row % kPhases);
  }
  BATON_ASSIGN_OR_RETURN(ModelDecodeSteps steps,
                         ModelDecodeSteps::Create(loaded_, std::move(positions)));
  steps_.emplace(std::move(steps));
  return absl::OkStatus();
}

absl::Status ShadowKvCapacityCase::Begin(int32_t variant, ModelRow& row) {
  wanted_hits_ = kHits[variant];
  row.Add("hits_forced", wanted_hits_, 2);
  step_ = 0;
  return kv_->ForceHits(wanted_hits_);
}

absl::Status ShadowKvCapacityCase::Step() {
  BATON_RETURN_IF_ERROR(steps_->NextTokens(*kv_));
  if (++step_ == kWarmUps) {
    BATON_ASSIGN_OR_RETURN(counted_, kv_->Counters());
  }
  return absl::OkStatus();
}

absl::Status ShadowKvCapacityCase::End(ModelRow& row) {
  BATON_ASSIGN_OR_RETURN(const kernels::ShadowKvCounters counted, kv_->Counters());
  const auto hits = static_cast<double>(counted.hits - counted_.hits);
  const auto misses = static_cast<double>(counted.misses - counted_.misses);
  const double share = hits / (hits + misses);
  row.Add("hits", share, 4);
  // A whole number of chunks is forced.
  const bool met =
      std::fabs(share - wanted_hits_) <= 1.0 / static_cast<double>(load_.config().budget_chunks());
  return met ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(share, " of the chunks were in caches"));
}

}  // namespace baton::model
