#include "common/kv/codec/fp8/fp8_codec.h"

#include <memory>
#include <span>

#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_decode_rows.h"
#include "kernels/core/step_arrays.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<DecodeRows>> Fp8Codec::Prepare(std::span<const DecodeRow> rows,
                                                              kernels::StepArrays& arrays) {
  return std::make_unique<Fp8DecodeRows>(*this, rows, arrays);
}

}  // namespace baton::kv
