#include "common/engine/sampling/penalty_state.h"

#include <algorithm>
#include <bit>

namespace baton::engine {
namespace {

void Repeat(float penalty, float& logit) {
  logit = logit > 0.0f ? logit / penalty : logit * penalty;
}

}  // namespace

size_t TokenBitmapBytes(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 7) / 8; }

TokenBitmap MakeTokenBitmap(std::span<const int32_t> tokens, int32_t vocab_size) {
  TokenBitmap bitmap(TokenBitmapBytes(vocab_size), 0);
  for (const int32_t token : tokens) {
    uint8_t& byte = bitmap[static_cast<size_t>(token) / 8];
    byte = static_cast<uint8_t>(byte | (1u << (token % 8)));
  }
  return bitmap;
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

int64_t PenaltyState::count(int32_t token) const {
  const auto entry = generated_.find(token);
  return entry == generated_.end() ? 0 : entry->second;
}

bool PenaltyState::InPrompt(int32_t token) const {
  const size_t byte = static_cast<size_t>(token) / 8;
  return prompt_ != nullptr && byte < prompt_->size() &&
         (((*prompt_)[byte] >> (token % 8)) & 1u) != 0;
}

void PenaltyState::ApplyRepetition(float penalty, std::span<float> logits) const {
  const size_t bytes = prompt_ == nullptr ? 0 : prompt_->size();
  for (size_t byte = 0; byte < bytes; ++byte) {
    for (uint32_t bits = (*prompt_)[byte]; bits != 0; bits &= bits - 1) {
      const size_t token = byte * 8 + static_cast<size_t>(std::countr_zero(bits));
      if (token < logits.size()) {
        Repeat(penalty, logits[token]);
      }
    }
  }
  for (const auto& [token, count] : generated_) {
    if (!InPrompt(token)) {
      Repeat(penalty, logits[static_cast<size_t>(token)]);
    }
  }
}

void PenaltyState::Apply(const SamplingParams& params, std::span<float> logits) const {
  if (params.repetition_penalty != 1.0f) {
    ApplyRepetition(params.repetition_penalty, logits);
  }
  if (params.frequency_penalty == 0.0f && params.presence_penalty == 0.0f) {
    return;
  }
  for (const auto& [token, count] : generated_) {
    logits[static_cast<size_t>(token)] -=
        params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  }
}

}  // namespace baton::engine
