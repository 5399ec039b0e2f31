// A codec of a back end on the host.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"

namespace baton::kv {

// Works out what its ops have to be told when they are called, layer by layer. Executor thread.
class HostCodec : public KvCodec {
 public:
  absl::StatusOr<std::unique_ptr<DecodeRows>> Prepare(std::span<const DecodeRow> rows,
                                                      kernels::StepArrays& arrays) final;

  // DecodeRows for rows of any sequences that have this codec.
  virtual absl::Status Append(std::span<const DecodeRow> rows, const KvEntries& entries) = 0;
  virtual absl::Status Attend(std::span<const DecodeRow> rows, const KvQueries& queries) = 0;
};

}  // namespace baton::kv
