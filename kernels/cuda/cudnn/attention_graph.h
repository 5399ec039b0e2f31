// Prefill attention as cuDNN's graph interface describes it: softmax(scale Q K^T + mask) V with the
// log-sum-exp of every row, made of single operations (performance.md 1.2), because the one
// operation for all of it knows no causal bound before cuDNN 9.21.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"

namespace baton::kernels::cuda {

// Which keys the query at row r of its sequence sees.
enum class AttentionMask : uint8_t {
  kNone,               // all
  kCausal,             // keys 0 .. r: a whole prompt
  kCausalBottomRight,  // keys 0 .. r + keys - queries: a chunk behind what is there already
};

// Sizes that a graph is made for. Q is [batch, queries, heads, head_dim] bf16, K and V are [batch,
// keys, kv_heads, head_dim] bf16, the output is like Q, the log-sum-exp is [batch, heads, queries]
// fp32.
struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 0;  // a multiple of kv_heads
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t queries = 0;  // per sequence, the most if ragged
  int64_t keys = 0;
  AttentionMask mask = AttentionMask::kCausal;
  // Sequences of different lengths lie anywhere in their tensors; where they begin (in elements)
  // and their token counts come with every call. The log-sum-exp is [rows, heads]: a sequence's
  // begins at its offset, too.
  bool ragged = false;
  // Elements from a row of Q, or of the output, to the next; 0: heads * head_dim.
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  // Ragged alone: keys and values lie in pages of so many tokens, a power of two, [kv_heads,
  // page_tokens, head_dim] each, page_stride elements from a page to the next; which pages are a
  // sequence's comes with every call. 0: they are ragged as queries are.
  int64_t page_tokens = 0;
  int64_t page_stride = 0;

  // Of a sequence of the most keys.
  int64_t pages() const { return (keys + page_tokens - 1) / page_tokens; }
  std::string ToString() const;

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const AttentionShape& shape) {
    return H::combine(std::move(hash),
                      shape.batch,
                      shape.heads,
                      shape.kv_heads,
                      shape.head_dim,
                      shape.queries,
                      shape.keys,
                      shape.mask,
                      shape.ragged,
                      shape.q_stride,
                      shape.out_stride,
                      shape.page_tokens,
                      shape.page_stride);
  }
};

// What a tensor is called when a plan runs.
enum class AttentionTensor : int64_t {
  kQuery = 1,
  kKey,    // in pages: the keys of page 0
  kValue,  // in pages: the values of page 0
  kOut,
  kLse,
  kScale,          // float on the host
  kMinusInfinity,  // float on the host: the score of a hidden key
  kQueryOffsets,   // ragged: int64 [batch + 1], in elements
  kKeyOffsets,     // not in pages
  kOutOffsets,
  kLseOffsets,
  kQueryTokens,  // ragged: int32 [batch]; else, bottom-right: int32 on the host
  kKeyTokens,
  kPageTable,  // in pages: int32 [batch, AttentionShape::pages()]
};

// A finalized operation graph with the descriptors that it is made of. Move-only.
class AttentionGraph {
 public:
  // kInvalidArgument for sizes that make no attention; kUnimplemented for what this cuDNN can't
  // describe.
  static absl::StatusOr<AttentionGraph> Build(const std::shared_ptr<const CudnnApi>& api,
                                              const AttentionShape& shape);

  const CudnnDescriptor& descriptor() const { return graph_; }
  const AttentionShape& shape() const { return shape_; }

 private:
  AttentionGraph(const AttentionShape& shape,
                 std::vector<CudnnDescriptor> parts,
                 CudnnDescriptor graph);

  AttentionShape shape_;
  std::vector<CudnnDescriptor> parts_;  // tensors and operations
  CudnnDescriptor graph_;
};

}  // namespace baton::kernels::cuda
