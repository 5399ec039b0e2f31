// Attention written out: what an extension's results are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/core/half.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {

// A token of one KV head.
struct PlainToken {
  int64_t position = 0;
  std::vector<double> key = {};
  std::vector<double> value = {};
};

// The token at `position` as bf16 working pages hold it.
inline PlainToken WorkingToken(uint32_t salt, int32_t layer, int32_t kv_head, int64_t position) {
  PlainToken token = {.position = position};
  for (const uint32_t kind : {1u, 2u}) {
    const std::vector<float> all = TestFloats(kTestKvWidth, kind, salt, layer, position);
    std::vector<double>& into = kind == 1 ? token.key : token.value;
    for (int32_t i = 0; i < kTestHeadDim; ++i) {
      const auto at = static_cast<size_t>(int64_t{kv_head} * kTestHeadDim + i);
      into.push_back(double{kernels::BF16ToF32(kernels::F32ToBF16(all[at]))});
    }
  }
  return token;
}

// What one query head gets.
struct PlainResult {
  std::vector<double> out = {};
  std::vector<double> probabilities = {};  // of every token given
  double lse = 0.0;
};

// Softmax attention over the tokens that the query at `position` sees.
inline PlainResult PlainAttention(const float* q,
                                  int64_t position,
                                  int32_t sliding_window,
                                  const std::vector<PlainToken>& tokens) {
  std::vector<double> scores;
  double max = -std::numeric_limits<double>::infinity();
  for (const PlainToken& token : tokens) {
    double dot = 0.0;
    for (size_t i = 0; i < token.key.size(); ++i) {
      dot += double{q[i]} * token.key[i];
    }
    const bool seen = token.position <= position &&
                      (sliding_window == 0 || position - token.position < sliding_window);
    scores.push_back(seen ? dot * double{kTestScale} : -std::numeric_limits<double>::infinity());
    max = std::max(max, scores.back());
  }
  double sum = 0.0;
  for (const double score : scores) {
    sum += std::exp(score - max);
  }
  PlainResult result = {.out = std::vector<double>(kTestHeadDim), .lse = max + std::log(sum)};
  for (size_t t = 0; t < tokens.size(); ++t) {
    result.probabilities.push_back(std::exp(scores[t] - result.lse));
    for (size_t i = 0; i < tokens[t].value.size(); ++i) {
      result.out[i] += result.probabilities.back() * tokens[t].value[i];
    }
  }
  return result;
}

}  // namespace baton::kv
