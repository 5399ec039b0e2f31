// Baseline `kivi`: 2-bit keys per channel, 2-bit values per token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// KIVI (arXiv 2402.02750, Algorithm 1) with its 2-bit setting: keys in groups of 32 tokens of one
// channel, values in groups of 32 channels of one token, fp16 scale and zero per group. Exact are
// the keys behind the last full block of 128 tokens, and the values of the newest 128 tokens.
class KiviBaseline : public Baseline {
 public:
  static constexpr int64_t kResidualTokens = 128;
  static constexpr int64_t kGroup = 32;
  static constexpr int kBits = 2;

  explicit KiviBaseline(const BaselineSetup& setup)
      : Baseline(setup, setup.max_tokens), coded_(heads()) {}

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  int64_t HeadBytes(HeadId at) const override;

 private:
  // Tokens whose keys and values are in codes.
  struct Coded {
    int64_t keys = 0;
    int64_t values = 0;
  };

  // Brings everything into codes that is not to be exact.
  void Code(HeadId at);

  std::vector<Coded> coded_;  // by head
};

}  // namespace baton::lab
