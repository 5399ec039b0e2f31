#include "tests/gpu/bench/model_decode_steps.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/model_gathered.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_next_tokens.h"

namespace baton::model {

absl::StatusOr<ModelDecodeSteps> ModelDecodeSteps::Create(const LoadedModel& loaded,
                                                          std::vector<int32_t> positions) {
  BATON_ASSIGN_OR_RETURN(ModelNextTokens next,
                         ModelNextTokens::Create(loaded, static_cast<int32_t>(positions.size())));
  return ModelDecodeSteps(loaded, std::move(positions), std::move(next));
}

ModelDecodeSteps::ModelDecodeSteps(const LoadedModel& loaded,
                                   std::vector<int32_t> positions,
                                   ModelNextTokens next)
    : loaded_(loaded), positions_(std::move(positions)), next_(std::move(next)) {
  const auto count = static_cast<int32_t>(positions_.size());
  for (int32_t row = 0; row < count; ++row) {
    sequences_.push_back({.row_begin = row, .row_count = 1});
    rows_.push_back(row);
  }
}

absl::Status ModelDecodeSteps::Run(std::span<const int32_t> token_ids,
                                   kv::StepKv& kv,
                                   std::span<float> logits) {
  return Forward(token_ids, kv, !logits.empty(), logits);
}

absl::Status ModelDecodeSteps::NextTokens(kv::StepKv& kv) {
  return Gathered(loaded_.exec, [&]() -> absl::Status {
    BATON_RETURN_IF_ERROR(Forward(next_.ids(), kv, /*wants_logits=*/true, {}));
    return next_.Fetch();
  });
}

absl::Status ModelDecodeSteps::Forward(std::span<const int32_t> token_ids,
                                       kv::StepKv& kv,
                                       bool wants_logits,
                                       std::span<float> logits) {
  ForwardBatch batch;
  batch.token_ids = token_ids;
  batch.positions = positions_;
  batch.sequences = sequences_;
  batch.survivors = rows_;
  if (wants_logits) {
    batch.logit_rows = rows_;
  }
  batch.kv = &kv;
  BATON_RETURN_IF_ERROR(loaded_.model.Forward(batch, logits));
  for (int32_t& position : positions_) {
    ++position;
  }
  return absl::OkStatus();
}

}  // namespace baton::model
