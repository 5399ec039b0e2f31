#include "services/lab/overlap/plain_keys.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "kernels/ops/params.h"
#include "services/lab/baselines/token_store.h"

namespace baton::lab {
namespace {

// [tokens][kv_heads][head_dim], as stored.
std::vector<float> ReadKeys(const kv::WorkingKv& working, int32_t kv_layer, int64_t tokens) {
  const int64_t heads = working.pages.layout.kv_heads;
  const int64_t dim = working.pages.layout.head_dim;
  std::vector<float> keys(static_cast<size_t>(tokens * heads * dim));
  std::vector<float> head_keys(static_cast<size_t>(tokens * dim));
  for (int32_t head = 0; head < heads; ++head) {
    ReadTokens(working, kv_layer, head, tokens, head_keys, {});
    for (int64_t token = 0; token < tokens; ++token) {
      std::copy_n(
          head_keys.begin() + token * dim, dim, keys.begin() + (token * heads + head) * dim);
    }
  }
  return keys;
}

// Turns every token back by the angles of its position.
absl::Status Unrotate(const KeyRotation& rotation,
                      int64_t heads,
                      int64_t head_dim,
                      std::vector<float>& keys) {
  const int64_t half_dim = head_dim / 2;
  const int64_t tokens = static_cast<int64_t>(keys.size()) / (heads * head_dim);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> cosines(static_cast<size_t>(tokens * half_dim));
  std::vector<float> sines(cosines.size());
  BATON_RETURN_IF_ERROR(
      rotation.ops.rope_angles(rotation.exec,
                               {.positions = positions.data(),
                                .inverse_frequencies = rotation.inverse_frequencies,
                                .rows = tokens,
                                .half_dim = half_dim,
                                .cosines = cosines.data(),
                                .sines = sines.data()}));
  std::ranges::transform(sines, sines.begin(), std::negate<>());
  return rotation.ops.rope(rotation.exec,
                           {.x = keys.data(),
                            .x_stride = heads * head_dim,
                            .cosines = cosines.data(),
                            .sines = sines.data(),
                            .rows = tokens,
                            .heads = heads,
                            .half_dim = half_dim});
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadPlainKeys(const KeyRotation& rotation,
                                                 const kv::WorkingKv& working,
                                                 int32_t kv_layer,
                                                 const float* bias,
                                                 int64_t tokens) {
  const int64_t heads = working.pages.layout.kv_heads;
  const int64_t dim = working.pages.layout.head_dim;
  std::vector<float> keys = ReadKeys(working, kv_layer, tokens);
  BATON_RETURN_IF_ERROR(Unrotate(rotation, heads, dim, keys));
  const auto width = static_cast<size_t>(heads * dim);
  for (size_t i = 0; bias != nullptr && i < keys.size(); ++i) {
    keys[i] -= bias[i % width];
  }
  return keys;
}

}  // namespace baton::lab
