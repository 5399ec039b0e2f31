// What a device tells of a row of logits.
#pragma once

#include <cstdint>
#include <span>

namespace baton::engine {

// The most likely tokens, as OpTable::top_logits lists them but for the empty places.
struct TopLogits {
  std::span<const int32_t> ids;  // most likely first, ties by id
  std::span<const float> values;
  float log_sum = 0.0f;  // of the whole row
};

}  // namespace baton::engine
