// Baseline `streaming`: the first tokens and the newest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// StreamingLLM (arXiv 2309.17453): 4 sink tokens and the newest budget - 4, generated ones
// included, everything else evicted. Unlike the paper's, keys keep the positions that they were
// computed with. A budget below 5 has fewer sinks, for at least one recent token.
class StreamingBaseline : public Baseline {
 public:
  static constexpr int64_t kSinks = 4;

  StreamingBaseline(const BaselineSetup& setup, int64_t budget);

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  int64_t HeadBytes(HeadId at) const override { return size(at) * TokenBytes(); }

 private:
  const int64_t budget_;
  const int64_t sinks_;
  std::vector<int32_t> oldest_;  // slot of the oldest recent token, once all slots are taken
};

}  // namespace baton::lab
