// Baton's own formats in a table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_kv.h"
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
  // a prompt dense. kUnimplemented for what is about the wire (hidden+...) and for formats that no
  // code executes, kInvalidArgument for what the model can't have, kResourceExhausted when the pool
  // is too small.
  absl::StatusOr<std::unique_ptr<kv::EncodedKv>> Make(const kv::KvFormatPolicy& policy,
                                                      int64_t prompt_tokens,
                                                      int64_t new_tokens);

 private:
  explicit TableFormats(std::unique_ptr<kv::CodecSet> codecs) : codecs_(std::move(codecs)) {}

  const std::unique_ptr<kv::CodecSet> codecs_;
};

}  // namespace baton::lab
