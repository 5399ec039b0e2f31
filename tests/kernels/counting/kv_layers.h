// The KV of one sequence in several layers of Llama-3.1-8B's shape, in any format, and the ops on
// it: for benchmarks and for counting what these ops touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

struct LlamaLayer {
  static constexpr int64_t kHeads = 32;
  static constexpr int32_t kKvHeads = 8;
  static constexpr int32_t kHeadDim = 128;
  static constexpr int32_t kKvWidth = kKvHeads * kHeadDim;
  static constexpr int32_t kHidden = 4096;
};

// `tokens` prompt tokens in each layer and room for one more. Every call takes the ops that do it;
// false when they refuse. Layers are independent, each with memory of its own.
class KvLayers {
 public:
  static constexpr int32_t kQueryFloats = LlamaLayer::kHeads * LlamaLayer::kHeadDim;

  virtual ~KvLayers() = default;

  // Makes the layer's form of the prompt from fp32 rows (dense, fp8, hidden) or dense pages.
  virtual bool Encode(const OpTable& ops, const ExecContext& exec, int layer) = 0;
  // Takes the token behind the prompt, always at the same place.
  virtual bool Append(const OpTable& ops, const ExecContext& exec, int layer) = 0;
  // Attention of that token's query; for hidden states, which nothing attends to, their decoding.
  virtual bool Attend(const OpTable& ops, const ExecContext& exec, int layer) = 0;
  // Bytes of a layer's prompt in this form, where Encode is so much work that counting what it
  // touches takes minutes; else 0.
  virtual size_t prompt_bytes() const { return 0; }
  // Of the last Attend.
  virtual const std::vector<float>& out() const = 0;
  // What the ops need in a pool of `threads` threads.
  virtual size_t workspace_bytes(const OpTable& ops, int threads) const;
};

// "dense", "fp8", "diffkv" (15 % of the tokens K8V4, 85 % K4V2), "shadowkv" (its default policy),
// "hidden" or "hidden8". Null for others.
std::unique_ptr<KvLayers> MakeKvLayers(std::string_view format, int32_t tokens, int layers);

}  // namespace baton::kernels
