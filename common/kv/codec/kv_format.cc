#include "common/kv/codec/kv_format.h"

#include "absl/status/status.h"

#include "common/kv/codec/dense_format.h"

namespace baton::kv {

int64_t KvFormat::ResidentBytes(int64_t tokens) const {
  return int64_t{PagesPerTable(tokens)} * page_tables() * static_cast<int64_t>(stride_bytes());
}

int64_t KvFormat::LogicalBytes(const KvDimensions& dimensions, int64_t tokens) {
  return tokens * dimensions.layers * 2 * dimensions.kv_heads * dimensions.head_dim * 2;
}

absl::StatusOr<std::unique_ptr<KvFormat>> MakeKvFormat(const KvPolicy& policy,
                                                       const KvDimensions& dimensions,
                                                       const KvPageOptions& options) {
  switch (policy.format) {
    case KvFormatId::kDense:
      return DenseFormat::Create(dimensions, options);
  }
  return absl::InvalidArgumentError("unknown KV format");
}

}  // namespace baton::kv
