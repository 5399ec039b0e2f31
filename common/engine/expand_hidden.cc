#include "common/engine/expand_hidden.h"

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"

namespace baton::engine {

absl::Status ExpandHidden(model::Model& model,
                          const kv::HiddenState& hidden,
                          int64_t token_begin,
                          int32_t token_count,
                          kv::StepKv& kv) {
  std::vector<int32_t> positions(static_cast<size_t>(token_count));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(token_begin));
  const model::SequenceSlice slice = {.row_begin = 0, .row_count = token_count};
  model::ForwardBatch batch;
  batch.positions = positions;
  batch.sequences = std::span(&slice, 1);
  batch.kv = &kv;
  return model.ExpandHidden(
      batch, [&](void* rows) { return hidden.Read(token_begin, token_count, rows); });
}

}  // namespace baton::engine
