#include "services/lab/table/observed_prefill_kv.h"

#include <algorithm>
#include <span>

#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::lab {

ObservedPrefillKv::ObservedPrefillKv(const kernels::OpTable& ops,
                                     const kernels::ExecContext& exec,
                                     const kv::WorkingKv& working,
                                     const PrefillObservers& observers,
                                     bool completes_prompt)
    : working_(working),
      dense_(ops, exec, working.pages, std::span(&working.table, 1)),
      observers_(observers),
      completes_prompt_(completes_prompt) {}

absl::Status ObservedPrefillKv::Attend(const kv::KvRows& rows, const kv::KvQueries& queries) {
  BATON_RETURN_IF_ERROR(dense_.Attend(rows, queries));
  const int32_t* end = rows.positions + rows.rows;
  for (const auto& encoding : observers_.encodings) {
    const int32_t* first = std::lower_bound(rows.positions, end, encoding.kv->first_observed());
    if (first != end) {
      const auto row_begin = static_cast<int32_t>(first - rows.positions);
      BATON_RETURN_IF_ERROR(encoding.kv->Observe(working_,
                                                 {.row_begin = row_begin,
                                                  .row_count = static_cast<int32_t>(end - first),
                                                  .positions = first,
                                                  .op_positions = rows.op_positions + row_begin},
                                                 queries));
    }
  }
  return absl::OkStatus();
}

absl::Status ObservedPrefillKv::WriteHidden(const kv::KvRows& rows, const void* x, int64_t stride) {
  for (kv::HiddenState* hidden : observers_.hidden) {
    BATON_RETURN_IF_ERROR(hidden->Write(*rows.positions, rows.rows, x, stride));
  }
  return absl::OkStatus();
}

absl::Status ObservedPrefillKv::LayerAttended(int32_t kv_layer) {
  for (const auto& encoding : observers_.encodings) {
    if (completes_prompt_ && kv_layer < encoding.layers) {
      BATON_RETURN_IF_ERROR(encoding.kv->EncodeLayer(working_, kv_layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::lab
