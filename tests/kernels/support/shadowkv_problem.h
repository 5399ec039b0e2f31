// One sequence in format `shadowkv` beside the same tokens in dense pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {

struct ShadowKvShape {
  int64_t heads = 4;
  ShadowKvConfig config = {
      .rank = 32, .chunk_tokens = 8, .budget_tokens = 64, .kv_heads = 2, .head_dim = 64};
  int64_t prompt_tokens = 400;
  int64_t generated_tokens = 0;  // room in the tail
  int32_t page_tokens = 32;      // of the dense pages that tokens are coded from
  // Keys before RoPE are a product of this rank plus noise, plus a bias of this size if not 0.
  int64_t key_rank = 16;
  float key_noise = 0.1f;
  float key_bias = 0.0f;
  // Values are copies of this many vectors if not 0, else every token has its own.
  int64_t value_kinds = 0;
};

// A configuration that codes without loss: every direction kept, exact values, fp32.
ShadowKvConfig LosslessConfig(const ShadowKvConfig& config);

// A context whose workspace fits the shape.
class ShadowKvContext {
 public:
  ShadowKvContext(const OpTable& ops, int threads, const ShadowKvShape& shape);
  const ExecContext& operator*() const { return *context_; }

 private:
  TestContext context_;
};

// What one step gave.
struct ShadowKvStep {
  std::vector<int32_t> chunk_ids;  // [kv_heads, budget chunks]
  std::vector<float> out;          // [heads, head_dim]
  ShadowKvCounters counters;
};

// Tokens are made from the seed alone, so two problems of one shape hold the same tokens whatever
// the back end. The prompt is encoded on construction.
class ShadowKvProblem {
 public:
  ShadowKvProblem(const OpTable& ops, const ExecContext& context, const ShadowKvShape& shape);

  // Appends the next generated token.
  void Append(const OpTable& ops, const ExecContext& context);
  // Selects with the query of the newest token. Needs at least one generated token.
  std::vector<int32_t> Select(const OpTable& ops, const ExecContext& context) const;
  std::vector<float> Attend(const OpTable& ops,
                            const ExecContext& context,
                            const std::vector<int32_t>& chunk_ids,
                            ShadowKvCounters* counters = nullptr) const;
  // Append, select and attend.
  ShadowKvStep Step(const OpTable& ops, const ExecContext& context);
  // Dense attention of the newest token over everything.
  std::vector<float> AttendDense(const OpTable& ops, const ExecContext& context) const;

  // Uses no cache from now on.
  void DropCache() { use_cache_ = false; }
  // Replaces this problem's prompt section and tail, with values apart, by another's bytes.
  void TakeBytes(const ShadowKvProblem& other);

  const ShadowKvShape& shape() const { return shape_; }
  const ShadowKvPromptLayout& layout() const { return layout_; }
  ShadowKvTailLayout tail_layout() const { return {layout_, shape_.generated_tokens}; }
  const std::byte* prompt() const { return prompt_.data(); }
  std::span<const std::byte> prompt_bytes() const { return prompt_.bytes(); }
  std::span<const std::byte> tail_bytes() const { return tail_.bytes(); }
  std::span<const std::byte> value_prompt_bytes() const { return value_prompt_.bytes(); }
  std::span<const std::byte> value_tail_bytes() const { return value_tail_.bytes(); }
  int64_t tokens() const { return tokens_; }
  ShadowKvSequence Sequence() const;
  ShadowKvRope rope() const;
  ShadowKvEncodeParams EncodeParams(std::byte* prompt) const;
  // Query of the newest token, [heads, head_dim].
  const float* query() const;
  const float* key_bias() const { return bias_.empty() ? nullptr : bias_.data(); }
  // A token's key before RoPE less the bias, after RoPE, and its value, as stored: [width].
  const float* factored_key(int64_t token) const;
  const float* key(int64_t token) const;
  const float* value(int64_t token) const;
  // Logits of the value clusters as the last Select wrote them, [heads, value_clusters].
  const std::vector<float>& cluster_logits() const { return cluster_logits_; }

 private:
  void MakeTokens();
  void WriteDense(const OpTable& ops, const ExecContext& context, int64_t first, int64_t count);

  ShadowKvShape shape_;
  ShadowKvPromptLayout layout_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
  std::vector<float> bias_;
  std::vector<float> factored_;  // [tokens, width]
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> queries_;  // [generated, heads, head_dim]
  std::vector<int32_t> page_table_;
  DensePageLayout pages_layout_;
  Buffer pages_;
  Buffer prompt_;
  Buffer tail_;
  // Of values apart; a byte more than there are.
  Buffer value_prompt_;
  Buffer value_tail_;
  mutable Buffer cache_;
  mutable std::vector<float> cluster_logits_;
  bool use_cache_ = true;
  int64_t tokens_ = 0;
};

}  // namespace baton::kernels
