// Baseline `int4`: every token in 4 bits.
#pragma once

#include <cstdint>
#include <span>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// Uniform asymmetric INT4 for all tokens: one fp16 scale and zero per token and KV head for the key
// and for the value. A generated token is quantized before its own attention.
class Int4Baseline : public Baseline {
 public:
  explicit Int4Baseline(const BaselineSetup& setup) : Baseline(setup, setup.max_tokens) {}

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  int64_t HeadBytes(HeadId at) const override;
};

}  // namespace baton::lab
