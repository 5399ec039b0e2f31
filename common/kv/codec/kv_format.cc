#include "common/kv/codec/kv_format.h"

#include <cstdint>

namespace baton::kv {

int64_t KvFormat::ResidentBytes(int64_t tokens) const {
  return int64_t{PagesPerTable(tokens)} * page_tables() * static_cast<int64_t>(stride_bytes());
}

int64_t KvFormat::LogicalBytes(const KvDimensions& dimensions, int64_t tokens) {
  return tokens * dimensions.layers * 2 * dimensions.kv_heads * dimensions.head_dim * 2;
}

}  // namespace baton::kv
