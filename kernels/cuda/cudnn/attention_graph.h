// Prefill attention as cuDNN's graph interface describes it: softmax(scale Q K^T + mask) V with the
// log-sum-exp of every row, made of single operations (performance.md 1.2), because the one
// operation for all of it knows no causal bound before cuDNN 9.21.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
  // Sequences of different lengths lie behind each other; offsets (in elements, int32) and token
  // counts come with every call.
  bool ragged = false;

  std::string ToString() const;
};

// What a tensor is called when a plan runs.
enum class AttentionTensor : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLse,
  kScale,          // float on the host
  kMinusInfinity,  // float on the host: the score of a hidden key
  kQueryOffsets,   // ragged: int32 [batch + 1], in elements
  kKeyOffsets,
  kOutOffsets,
  kQueryTokens,  // ragged: int32 [batch]; else, bottom-right: int32 on the host
  kKeyTokens,
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
