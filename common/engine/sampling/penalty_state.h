// Which tokens a sequence has seen: what repetition, presence and frequency penalties look at.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "common/engine/sampling_params.h"

namespace baton::engine {

// Bit t (t % 8 of byte t / 8) is set when token t occurs.
using TokenBitmap = std::vector<uint8_t>;

TokenBitmap MakeTokenBitmap(std::span<const int32_t> tokens, int32_t vocab_size);
// Bytes of a bitmap over a vocabulary.
size_t TokenBitmapBytes(int32_t vocab_size);

// One sequence's penalty state. Not thread-safe: the executor reads it while a step is in flight,
// the engine thread records between steps. The prompt's bitmap is shared by the request's n
// sequences.
class PenaltyState {
 public:
  PenaltyState() = default;
  // `prompt` may be null: no repetition penalty.
  explicit PenaltyState(std::shared_ptr<const TokenBitmap> prompt) : prompt_(std::move(prompt)) {}

  // Counts a generated token (the first one included).
  void Record(int32_t token) { ++generated_[token]; }

  // Adjusts `logits` [vocab] in place as vLLM documents: repetition penalty (prompt and generated
  // tokens; positive logits divided, others multiplied), then frequency penalty times count and
  // presence penalty (generated tokens only).
  void Apply(const SamplingParams& params, std::span<float> logits) const;

  int64_t count(int32_t token) const;

 private:
  bool InPrompt(int32_t token) const;
  void ApplyRepetition(float penalty, std::span<float> logits) const;

  std::shared_ptr<const TokenBitmap> prompt_;
  absl::flat_hash_map<int32_t, int32_t> generated_;
};

// Whether the request has any penalty, so that state has to be kept at all.
bool HasPenalties(const SamplingParams& params);

}  // namespace baton::engine
