// What the baselines of a comparison share: published ways of keeping fewer bytes or reading fewer
// tokens, executed plainly for the lab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "services/lab/baselines/token_store.h"

namespace baton::lab {

// Where and for what a baseline runs. `ops` and what `exec` points to are borrowed.
struct BaselineSetup {
  const kernels::OpTable& ops;
  const kernels::ExecContext& exec;
  kv::KvDimensions dimensions;
  kernels::DType dtype = kernels::DType::kBF16;  // of working pages, and of tokens kept exactly
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // prompt and generated tokens
};

// One KV head of one stored layer.
struct HeadId {
  int32_t kv_layer = 0;
  int32_t kv_head = 0;
};

// The query heads of one KV head in one decode step.
struct HeadQuery {
  HeadId at;
  const float* q = nullptr;  // [group][head_dim]
  int32_t group = 0;
  float scale = 0.0f;
};

// KV that is encoded after prefill and decoded in this process only: nothing ships or lands. Tokens
// are in slots of an fp32 store, quantized ones as what their codes decode to; attention over any
// set of slots is the dense op's, so a baseline that leaves nothing out answers like dense KV.
// Bytes are those of the format (codes, metadata, exact tokens in the pages' dtype), not of the
// fp32 store. Keys are those after RoPE, at their true positions. Layers with a sliding window are
// refused (kUnimplemented).
class Baseline : public kv::EncodedKv {
 public:
  kv::KvCodec& codec() const override;
  int64_t tokens() const override { return tokens_; }
  int64_t first_observed() const override { return setup_.prompt_tokens; }
  absl::Status Observe(const kv::WorkingKv& working,
                       const kv::PromptRows& rows,
                       const kv::KvQueries& queries) override;
  absl::Status EncodeLayer(const kv::WorkingKv& working, int32_t kv_layer) override;
  kv::EncodedLayer LayerPages(int32_t kv_layer) const override;
  std::string State() const override;
  std::vector<std::span<std::byte>> Window(int32_t kv_layer, int32_t pages) override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void Trim() override {}
  absl::Status CopyTo(kv::EncodedKv& other, std::vector<kv::PageCopies>& copies) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override { return ResidentBytes(); }
  kv::AttentionCounters counters() const override { return counters_; }

  // One new token of this sequence, as the codec gives it: row `row` of `entries` or `queries`.
  void AppendToken(const kv::KvEntries& entries, int32_t row, int32_t position);
  absl::Status AttendToken(const kv::KvQueries& queries, int32_t row);

 protected:
  // `capacity`: slots of each head.
  Baseline(const BaselineSetup& setup, int64_t capacity);

  // The prompt's keys and values of one head, [prompt_tokens][head_dim] each; may be changed. Heads
  // of a layer are encoded, appended to, selected from at the same time by several threads.
  virtual void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) = 0;
  virtual void AppendHead(HeadId at, const float* key, const float* value, int32_t position) = 0;
  // The slots that this query attends to, at least one. All by default.
  virtual void Select(const HeadQuery& query, std::vector<int32_t>& slots);
  // Called once attention over those slots is done.
  virtual void Attended(const HeadQuery& /*query*/, std::span<const int32_t> /*slots*/) {}
  // Bytes of one head now.
  virtual int64_t HeadBytes(HeadId at) const = 0;

  const BaselineSetup& setup() const { return setup_; }
  int32_t head_dim() const { return setup_.dimensions.head_dim; }
  size_t heads() const;
  size_t Index(HeadId at) const;
  TokenStore& store(int32_t kv_layer) { return stores_[static_cast<size_t>(kv_layer)]; }
  // Slots in use.
  int32_t size(HeadId at) const { return sizes_[Index(at)]; }
  // Puts a token into the next slot, or all tokens of a prompt.
  void Add(HeadId at, const float* key, const float* value);
  void AddAll(HeadId at, std::span<const float> keys, std::span<const float> values);
  // Bytes of one head's key and value in the pages' dtype.
  int64_t TokenBytes() const;

 private:
  void ForHeads(const std::function<void(int32_t kv_head)>& body);

  const BaselineSetup setup_;
  std::vector<TokenStore> stores_;           // by layer
  std::vector<int32_t> sizes_;               // by head
  std::vector<std::vector<int32_t>> slots_;  // by KV head, of the call at hand
  int64_t tokens_ = 0;
  kv::AttentionCounters counters_;
};

// Tokens that a budget stands for, at least 1.
int64_t BudgetTokens(const kv::KvBudget& budget, int64_t prompt_tokens);

}  // namespace baton::lab
