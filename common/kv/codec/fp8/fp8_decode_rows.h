// The decode rows of a step in format `fp8`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Rows of all layers are described before the step. Executor thread.
class Fp8DecodeRows final : public DecodeRows {
 public:
  // Everything is borrowed for the step, but for `rows` itself.
  Fp8DecodeRows(Fp8Codec& codec, std::span<const DecodeRow> rows, kernels::StepArrays& arrays);

  absl::Status Append(const KvEntries& entries) override;
  absl::Status Attend(const KvQueries& queries) override;

 private:
  Fp8Codec& codec_;
  const std::vector<DecodeRow> rows_;  // by row
  // Ops are told of the tile's rows from the first on that is here.
  const int32_t first_row_;
  const int64_t count_;
  std::vector<int32_t> positions_;                // by row
  std::vector<kernels::SequenceRows> sequences_;  // [layers][rows_]
  // Where ops read them.
  const int32_t* op_positions_ = nullptr;
  const kernels::SequenceRows* op_sequences_ = nullptr;
};

}  // namespace baton::kv
