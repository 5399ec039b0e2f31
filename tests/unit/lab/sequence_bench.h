// One sequence with keys, values and queries of the test's own, prefilled and decoded without a
// model.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/table/working_pages.h"
#include "tests/kernels/support/backends.h"

namespace baton::lab {

// Two layers, two KV heads with two query heads each; fp32 pages. All data is random until a test
// sets it. A vector that is shorter than head_dim sets the first channels.
class SequenceBench {
 public:
  static constexpr int32_t kLayers = 2;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kHeads = 4;

  SequenceBench(int64_t prompt_tokens, int64_t max_tokens, int32_t head_dim);

  const BaselineSetup& setup() const { return setup_; }
  WorkingPages& pages() { return pages_; }
  int32_t head_dim() const { return setup_.dimensions.head_dim; }

  // The same vector for a token in every layer and head.
  void SetKey(int64_t token, const std::vector<float>& key);
  void SetValue(int64_t token, const std::vector<float>& value);
  void SetQuery(int64_t token, const std::vector<float>& query);
  // [kHeads][head_dim], in every layer.
  void SetQueryHeads(int64_t token, const std::vector<float>& queries);
  // Every element.
  void SetAllKeys(float value);
  void SetAllQueries(float value);
  // Channel t of token t's value is 1, the others are 0: with near-uniform attention the output
  // shows which tokens were attended to. head_dim must be at least max_tokens.
  void MarkValues();

  // Prefills in steps of `chunk` tokens, observed and encoded by `encodings`.
  void Prefill(std::span<kv::EncodedKv* const> encodings, int64_t chunk, float scale = 0.3f);
  void Prefill(kv::EncodedKv& encoding, float scale = 0.3f);
  // Decodes token `token` in every layer; the outputs [layers][heads][head_dim].
  std::vector<float> Decode(kv::EncodedKv& encoding, int64_t token, float scale = 0.3f);
  // The same from dense pages, in a run of its own that starts with token `prompt_tokens`.
  std::vector<float> DecodeDense(int64_t token, float scale = 0.3f);
  // Tokens that one head attended to, from marked values.
  std::set<int32_t> AttendedTokens(std::span<const float> output,
                                   int32_t layer,
                                   int32_t head) const;

 private:
  using LayerData = std::vector<std::vector<float>>;  // by layer: [token][head][channel]

  void SetToken(LayerData& data, int64_t token, int32_t heads, const std::vector<float>& vector);
  void RunStep(kv::StepKv& kv, int64_t begin, int64_t count, float scale, std::vector<float>& out);

  kernels::TestContext context_;
  BaselineSetup setup_;
  WorkingPages pages_;
  kv::DenseTable dense_run_;
  LayerData keys_;
  LayerData values_;
  LayerData queries_;
};

}  // namespace baton::lab
