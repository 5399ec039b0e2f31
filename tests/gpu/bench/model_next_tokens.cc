#include "tests/gpu/bench/model_next_tokens.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "kernels/core/memory.h"
#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

absl::StatusOr<ModelNextTokens> ModelNextTokens::Create(const LoadedModel& loaded, int32_t count) {
  BATON_ASSIGN_OR_RETURN(
      kernels::Memory top,
      loaded.exec.memory->Allocate(static_cast<size_t>(count) * 3 * sizeof(float)));
  return ModelNextTokens(loaded, count, std::move(top));
}

ModelNextTokens::ModelNextTokens(const LoadedModel& loaded, int32_t count, kernels::Memory top)
    : loaded_(loaded), top_(std::move(top)), ids_(static_cast<size_t>(count)) {}

absl::Status ModelNextTokens::Fetch() {
  const auto rows = static_cast<int64_t>(ids_.size());
  BATON_RETURN_IF_ERROR(loaded_.ops.top_logits(loaded_.exec,
                                               {.logits = loaded_.model.device_logits(),
                                                .rows = rows,
                                                .vocab = loaded_.model.config().vocab_size,
                                                .count = 1,
                                                .ids = top_.as<int32_t>(),
                                                .values = top_.as<float>() + rows,
                                                .log_sums = top_.as<float>() + 2 * rows}));
  return loaded_.exec.memory->Download(ids_.data(), top_.data(), ids_.size() * sizeof(int32_t));
}

}  // namespace baton::model
