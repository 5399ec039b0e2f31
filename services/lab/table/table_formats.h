// Baton's own formats in a table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_policy.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

// Executes the formats that some policy names, with a pool of its own for each. A pool has to hold
// all policies of a case at once. `model` is borrowed. Not thread-safe.
class TableFormats {
 public:
  static absl::StatusOr<std::unique_ptr<TableFormats>> Create(
      const TableModel& model, const std::vector<kv::KvPolicy>& policies, int64_t pool_bytes);

  // The KV of a prompt with at most `new_tokens` generated ones; null where the format leaves such
  // a prompt dense. kUnimplemented for formats that no code executes, kInvalidArgument for what the
  // model can't have, kResourceExhausted when the pool is too small.
  absl::StatusOr<std::unique_ptr<kv::EncodedKv>> Make(const kv::KvFormatPolicy& policy,
                                                      int64_t prompt_tokens,
                                                      int64_t new_tokens);

  // What of a prompt's upper layers is sent under a policy with a hidden wire form.
  // kInvalidArgument for a model without such layers.
  absl::StatusOr<kv::HiddenShape> HiddenShapeOf(const kv::KvFormatPolicy& policy,
                                                int64_t prompt_tokens) const;
  // Memory for that; kResourceExhausted when the pool is too small.
  absl::StatusOr<std::unique_ptr<kv::HiddenState>> MakeHidden(const kv::HiddenShape& shape);

 private:
  explicit TableFormats(std::unique_ptr<kv::CodecSet> codecs) : codecs_(std::move(codecs)) {}

  const std::unique_ptr<kv::CodecSet> codecs_;
};

}  // namespace baton::lab
