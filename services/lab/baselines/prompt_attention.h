// How much attention each prompt token gets from prompt queries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "kernels/core/buffer.h"
#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// Per KV head and token: the sum over the observed queries of the attention probability that the
// token gets from them, per query the largest of the KV head's query heads. The queries of all
// model layers that read a stored layer count (AcrossKV). Causal. Shared by the baselines of one
// prompt that look at the same queries, of which only the first to call Observe is listened to.
class PromptAttention {
 public:
  // `setup` is borrowed by what it points to; queries from position `first_observed` on count.
  PromptAttention(const BaselineSetup& setup, int64_t first_observed);

  int64_t first_observed() const { return first_observed_; }
  absl::Status Observe(const void* observer,
                       const kv::WorkingKv& working,
                       const kv::PromptRows& rows,
                       const kv::KvQueries& queries);
  // [prompt_tokens].
  std::span<const float> Sums(HeadId at) const;

 private:
  size_t SumsOffset(HeadId at) const;
  // Packs the keys [0, keys_) of a head for products with queries.
  absl::Status LoadKeys(const kv::WorkingKv& working, HeadId at);
  absl::Status ObserveBlock(HeadId at, const kv::PromptRows& rows, const kv::KvQueries& queries);
  // Turns the products of one row into probabilities, the largest of its query heads in the first.
  void Normalize(int32_t group, int64_t row, int32_t position);

  const BaselineSetup setup_;
  const int64_t first_observed_;
  const void* observer_ = nullptr;
  std::vector<float> sums_;  // [layers][kv_heads][prompt_tokens]
  int64_t keys_ = 0;
  std::vector<float> key_rows_;
  kernels::Buffer packed_keys_;
  std::vector<float> queries_;  // [rows][group][head_dim] of a block
  std::vector<float> scores_;   // [rows][group][keys_]
};

}  // namespace baton::lab
