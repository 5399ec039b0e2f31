#include "services/lab/baselines/int4.h"

#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/round_to_codes.h"

namespace baton::lab {
namespace {

constexpr int kBits = 4;

void RoundVectors(std::span<float> vectors, int64_t dim) {
  for (size_t i = 0; i < vectors.size(); i += static_cast<size_t>(dim)) {
    RoundToCodes(&vectors[i], dim, 1, kBits);
  }
}

}  // namespace

void Int4Baseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  RoundVectors(keys, head_dim());
  RoundVectors(values, head_dim());
  AddAll(at, keys, values);
}

void Int4Baseline::AppendHead(HeadId at,
                              const float* key,
                              const float* value,
                              int32_t /*position*/) {
  std::vector<float> k(key, key + head_dim());
  std::vector<float> v(value, value + head_dim());
  RoundVectors(k, head_dim());
  RoundVectors(v, head_dim());
  Add(at, k.data(), v.data());
}

int64_t Int4Baseline::HeadBytes(HeadId at) const {
  const int64_t vector_bytes = int64_t{head_dim()} * kBits / 8 + kGroupMetadataBytes;
  return size(at) * 2 * vector_bytes;
}

}  // namespace baton::lab
