#include "tests/gpu/bench/model_capacity_diffkv.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_diffkv_kv.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"

namespace baton::model {
namespace {

constexpr double kHighShare = 0.15;
constexpr int32_t kEvery = 16;

}  // namespace

DiffKvCapacityCase::DiffKvCapacityCase(const LoadedModel& loaded, int32_t tokens)
    : loaded_(loaded) {
  const KvShape shape = loaded.model.kv_shape();
  load_ = {.geometry = {.kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
           .layers = shape.layers,
           .tokens = tokens - kPoolSteps,
           .high_share = kHighShare,
           .growth = kPoolSteps};
}

int64_t DiffKvCapacityCase::kv_bytes() const {
  return ModelDiffKvKv::SequenceBytes(load_, loaded_.model.config().num_heads);
}

absl::Status DiffKvCapacityCase::Make(int32_t sequences) {
  load_.rows = sequences;
  BATON_ASSIGN_OR_RETURN(kv_, ModelDiffKvKv::Create(loaded_, load_));
  BATON_ASSIGN_OR_RETURN(
      ModelDecodeSteps steps,
      ModelDecodeSteps::Create(loaded_,
                               std::vector<int32_t>(static_cast<size_t>(sequences), load_.tokens)));
  steps_.emplace(std::move(steps));
  return absl::OkStatus();
}

absl::Status DiffKvCapacityCase::Begin(int32_t variant, ModelRow& row) {
  const int32_t score_every = variant == 0 ? kEvery : 1;
  kv_->SetTurns({.sweep_every = kEvery, .score_every = score_every});
  row.Add("scored_every", int64_t{score_every});
  return absl::OkStatus();
}

}  // namespace baton::model
