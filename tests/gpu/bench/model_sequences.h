// Sequences of equal length that go through a model together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/dense_step_kv.h"
#include "tests/gpu/bench/model_next_tokens.h"
#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

// `count` sequences of `tokens` tokens each: random ids, the same in every object of that size, and
// pages drawn from the subject's pool, perhaps those of an earlier object: use one at a time. Not
// thread-safe.
class ModelSequences {
 public:
  // Borrows the subject. kResourceExhausted when its pool has too few pages.
  static absl::StatusOr<ModelSequences> Create(const ModelSubject& subject,
                                               int32_t count,
                                               int32_t tokens);
  ModelSequences(ModelSequences&&) = default;
  ModelSequences(const ModelSequences&) = delete;
  ModelSequences& operator=(const ModelSequences&) = delete;

  // [count][tokens].
  std::span<const int32_t> token_ids() const { return token_ids_; }

  // One step: the tokens at positions [begin, begin + rows) of every sequence, packed. As the
  // engine asks (common/engine/step_builder.h), of a prompt only its last token survives the full
  // layers of a SwiftKV model, and only its logits are wanted: `logits`, [count][vocab], is for a
  // step with the last tokens, in which it may be empty too.
  absl::Status Step(int32_t begin, int32_t rows, std::span<float> logits) const;
  // All tokens in steps of at most `step_rows` rows, which are at least one of each sequence;
  // logits as above, once they are on the host, in a buffer that lives until the next call.
  absl::StatusOr<std::span<const float>> Prefill(int32_t step_rows);
  // The last token alone, behind what its pages hold of the others.
  absl::StatusOr<std::span<const float>> Decode();
  // The same, but only the most likely next token of each sequence comes to the host, as the engine
  // asks for a greedy draw.
  absl::Status NextTokens();
  // The last token without logits: returns before the device's work is done.
  absl::Status QueueDecode() const { return Step(tokens_ - 1, 1, {}); }

 private:
  ModelSequences(const ModelSubject& subject,
                 int32_t count,
                 int32_t tokens,
                 std::vector<int32_t> page_tables,
                 ModelNextTokens next);
  absl::Status Run(int32_t begin, int32_t rows, bool wants_logits, std::span<float> logits) const;

  const ModelSubject& subject_;
  int32_t count_;
  int32_t tokens_;
  std::vector<int32_t> token_ids_;  // [count][tokens]
  std::vector<int32_t> page_tables_;
  std::vector<kv::DenseTable> tables_;  // [count], of page_tables_
  std::vector<float> logits_;           // [count][vocab]
  ModelNextTokens next_;
};

}  // namespace baton::model
