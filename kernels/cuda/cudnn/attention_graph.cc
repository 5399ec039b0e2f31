#include "kernels/cuda/cudnn/attention_graph.h"

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"
#include "kernels/cuda/cudnn/graph_builder.h"

namespace baton::kernels::cuda {
namespace {

using Tensor = CudnnGraphBuilder::Tensor;

// Axes of scores, [batch, heads, queries, keys].
constexpr int64_t kQueryAxis = 2;
constexpr int64_t kKeyAxis = 3;

// A pool is described by more pages than any device has memory for, so that a plan does not depend
// on the pool; only pages that tables name are touched.
constexpr int64_t kMostPoolElements = int64_t{1} << 37;

// One graph while it is put together.
class Assembly {
 public:
  Assembly(const std::shared_ptr<const CudnnApi>& api, const AttentionShape& shape)
      : shape_(shape), builder_(api) {
    if (shape.ragged) {
      const Dims4 by_sequence = {shape.batch, 1, 1, 1};
      query_tokens_ = Input(AttentionTensor::kQueryTokens, by_sequence, kUnit, CUDNN_DATA_INT32);
      key_tokens_ = Input(AttentionTensor::kKeyTokens, by_sequence, kUnit, CUDNN_DATA_INT32);
    }
  }

  void Assemble() {
    const Tensor minus_infinity = Scalar(AttentionTensor::kMinusInfinity, CUDNN_DATA_FLOAT);
    const KeysAndValues keys = shape_.page_tokens > 0 ? InPages() : InRows();
    Tensor scores = ScaledScores(keys.keys);
    if (shape_.ragged) {
      scores = Hide(scores, Present(scores), minus_infinity);
    }
    if (shape_.mask != AttentionMask::kNone) {
      scores = Hide(scores, AtOrBefore(scores), minus_infinity);
    }
    WeighValues(Softmax(scores), keys.values);
  }

  absl::StatusOr<CudnnDescriptor> Finish(std::vector<CudnnDescriptor>& parts) {
    return builder_.Finish(parts);
  }

 private:
  static constexpr Dims4 kUnit = {1, 1, 1, 1};

  Tensor Input(AttentionTensor name,
               const Dims4& dims,
               const Dims4& strides,
               cudnnDataType_t type,
               std::optional<Tensor> offsets = std::nullopt) {
    return builder_.Input(static_cast<int64_t>(name), dims, strides, type, offsets);
  }
  Tensor Scalar(AttentionTensor name, cudnnDataType_t type) {
    return builder_.Scalar(static_cast<int64_t>(name), type);
  }
  // Where the sequences of a ragged tensor begin.
  std::optional<Tensor> Offsets(AttentionTensor name) {
    return shape_.ragged
               ? std::optional(Input(name, {shape_.batch + 1, 1, 1, 1}, kUnit, CUDNN_DATA_INT64))
               : std::nullopt;
  }
  // An element per query, head and key, or per query and head.
  Tensor Scores(cudnnDataType_t type) {
    const int64_t row = shape_.keys;
    const int64_t head = shape_.queries * row;
    return builder_.Virtual({shape_.batch, shape_.heads, shape_.queries, shape_.keys},
                            {shape_.heads * head, head, row, 1},
                            type);
  }
  Dims4 RowDims() const { return {shape_.batch, shape_.heads, shape_.queries, 1}; }
  Dims4 RowStrides() const { return {shape_.heads * shape_.queries, shape_.queries, 1, 1}; }
  Tensor Rows() { return builder_.Virtual(RowDims(), RowStrides(), CUDNN_DATA_FLOAT); }
  Tensor Op(cudnnPointwiseMode_t mode,
            const CudnnGraphBuilder::PointwiseInputs& inputs,
            cudnnDataType_t type) {
    const Tensor y = Scores(type);
    builder_.Pointwise(mode, inputs, y, type);
    return y;
  }

  // [batch, queries, heads, head_dim] as cuDNN orders it: batch, heads, queries, head_dim.
  Tensor QueryRows(AttentionTensor name, AttentionTensor offsets, int64_t stride) {
    const int64_t dim = shape_.head_dim;
    const int64_t row = stride > 0 ? stride : shape_.heads * dim;
    return Input(name,
                 {shape_.batch, shape_.heads, shape_.queries, dim},
                 {shape_.queries * row, dim, row, 1},
                 CUDNN_DATA_BFLOAT16,
                 Offsets(offsets));
  }

  // Keys transposed: batch, heads, head_dim, tokens; and values: batch, heads, tokens, head_dim.
  struct KeysAndValues {
    Tensor keys;
    Tensor values;
  };
  Dims4 KeyDims() const { return {shape_.batch, shape_.kv_heads, shape_.head_dim, shape_.keys}; }
  Dims4 ValueDims() const { return {shape_.batch, shape_.kv_heads, shape_.keys, shape_.head_dim}; }

  // One sequence behind the other; keys and values lie alike.
  KeysAndValues InRows() {
    const int64_t dim = shape_.head_dim;
    const int64_t row = shape_.kv_heads * dim;
    const int64_t sequence = shape_.keys * row;
    const std::optional<Tensor> offsets = Offsets(AttentionTensor::kKeyOffsets);
    return {.keys = Input(AttentionTensor::kKey,
                          KeyDims(),
                          {sequence, dim, 1, row},
                          CUDNN_DATA_BFLOAT16,
                          offsets),
            .values = Input(AttentionTensor::kValue,
                            ValueDims(),
                            {sequence, dim, row, 1},
                            CUDNN_DATA_BFLOAT16,
                            offsets)};
  }

  KeysAndValues InPages() {
    const int64_t dim = shape_.head_dim;
    const int64_t head = shape_.page_tokens * dim;
    const Dims4 pool_dims = {
        kMostPoolElements / shape_.page_stride, shape_.kv_heads, shape_.page_tokens, dim};
    const Dims4 pool_strides = {shape_.page_stride, head, dim, 1};
    const Tensor key_pool =
        Input(AttentionTensor::kKey, pool_dims, pool_strides, CUDNN_DATA_BFLOAT16);
    const Tensor value_pool =
        Input(AttentionTensor::kValue, pool_dims, pool_strides, CUDNN_DATA_BFLOAT16);
    const int64_t pages = shape_.pages();
    const Tensor table = Input(AttentionTensor::kPageTable,
                               {shape_.batch, 1, pages, 1},
                               {pages, pages, 1, 1},
                               CUDNN_DATA_INT32);
    const int64_t all_keys = shape_.keys * dim;  // of a head
    const int64_t sequence = shape_.kv_heads * all_keys;
    const KeysAndValues loaded = {
        .keys = builder_.Virtual(KeyDims(), {sequence, all_keys, 1, dim}, CUDNN_DATA_BFLOAT16),
        .values = builder_.Virtual(ValueDims(), {sequence, all_keys, dim, 1}, CUDNN_DATA_BFLOAT16)};
    builder_.LoadPages(key_pool, table, *key_tokens_, loaded.keys);
    builder_.LoadPages(value_pool, table, *key_tokens_, loaded.values);
    return loaded;
  }

  Tensor ScaledScores(Tensor keys) {
    const Tensor q =
        QueryRows(AttentionTensor::kQuery, AttentionTensor::kQueryOffsets, shape_.q_stride);
    const Tensor products = Scores(CUDNN_DATA_FLOAT);
    builder_.Matmul(q, keys, products, {.m = query_tokens_, .n = key_tokens_});
    return Op(CUDNN_POINTWISE_MUL,
              {.x = products, .b = Scalar(AttentionTensor::kScale, CUDNN_DATA_FLOAT)},
              CUDNN_DATA_FLOAT);
  }

  Tensor Index(Tensor like, int64_t axis) {
    return Op(CUDNN_POINTWISE_GEN_INDEX, {.x = like, .axis = axis}, CUDNN_DATA_INT32);
  }
  // Queries and keys that the sequences really have.
  Tensor Present(Tensor scores) {
    const Tensor query = Op(CUDNN_POINTWISE_CMP_LT,
                            {.x = Index(scores, kQueryAxis), .b = query_tokens_},
                            CUDNN_DATA_BOOLEAN);
    const Tensor key = Op(CUDNN_POINTWISE_CMP_LT,
                          {.x = Index(scores, kKeyAxis), .b = key_tokens_},
                          CUDNN_DATA_BOOLEAN);
    return Op(CUDNN_POINTWISE_LOGICAL_AND, {.x = query, .b = key}, CUDNN_DATA_BOOLEAN);
  }
  // Keys at or before the query's position.
  Tensor AtOrBefore(Tensor scores) {
    Tensor position = Index(scores, kQueryAxis);
    if (shape_.mask == AttentionMask::kCausalBottomRight) {
      const Tensor keys = key_tokens_.has_value()
                              ? *key_tokens_
                              : Scalar(AttentionTensor::kKeyTokens, CUDNN_DATA_INT32);
      const Tensor queries = query_tokens_.has_value()
                                 ? *query_tokens_
                                 : Scalar(AttentionTensor::kQueryTokens, CUDNN_DATA_INT32);
      const Tensor sum = Op(CUDNN_POINTWISE_ADD, {.x = position, .b = keys}, CUDNN_DATA_INT32);
      position = Op(CUDNN_POINTWISE_SUB, {.x = sum, .b = queries}, CUDNN_DATA_INT32);
    }
    return Op(
        CUDNN_POINTWISE_CMP_GE, {.x = position, .b = Index(scores, kKeyAxis)}, CUDNN_DATA_BOOLEAN);
  }
  Tensor Hide(Tensor scores, Tensor seen, Tensor minus_infinity) {
    return Op(CUDNN_POINTWISE_BINARY_SELECT,
              {.x = scores, .b = minus_infinity, .select = seen},
              CUDNN_DATA_FLOAT);
  }

  Tensor Lse() {
    const Dims4 by_row = {shape_.queries * shape_.heads, 1, shape_.heads, 1};
    return Input(AttentionTensor::kLse,
                 RowDims(),
                 shape_.ragged ? by_row : RowStrides(),
                 CUDNN_DATA_FLOAT,
                 Offsets(AttentionTensor::kLseOffsets));
  }

  // Weights in bf16; writes the log-sum-exp.
  Tensor Softmax(Tensor scores) {
    const Tensor max = Rows();
    builder_.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, max);
    const Tensor shifted = Op(CUDNN_POINTWISE_SUB, {.x = scores, .b = max}, CUDNN_DATA_FLOAT);
    const Tensor exponentials = Op(CUDNN_POINTWISE_EXP, {.x = shifted}, CUDNN_DATA_FLOAT);
    const Tensor sum = Rows();
    builder_.Reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
    const Tensor log = Rows();
    builder_.Pointwise(CUDNN_POINTWISE_LOG, {.x = sum}, log);
    builder_.Pointwise(CUDNN_POINTWISE_ADD, {.x = max, .b = log}, Lse());
    const Tensor weights = Scores(CUDNN_DATA_BFLOAT16);
    builder_.Pointwise(CUDNN_POINTWISE_DIV, {.x = exponentials, .b = sum}, weights);
    return weights;
  }

  void WeighValues(Tensor weights, Tensor values) {
    const Tensor out =
        QueryRows(AttentionTensor::kOut, AttentionTensor::kOutOffsets, shape_.out_stride);
    builder_.Matmul(weights, values, out, {.m = query_tokens_, .k = key_tokens_});
  }

  const AttentionShape& shape_;
  CudnnGraphBuilder builder_;
  std::optional<Tensor> query_tokens_;
  std::optional<Tensor> key_tokens_;
};

absl::Status Check(const AttentionShape& shape) {
  const bool sized = shape.batch > 0 && shape.heads > 0 && shape.kv_heads > 0 &&
                     shape.head_dim > 0 && shape.queries > 0 && shape.keys > 0;
  if (!sized || shape.heads % shape.kv_heads != 0 || shape.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: sizes must be above 0, heads a multiple of kv_heads and head_dim "
                     "of 8: ",
                     shape.ToString()));
  }
  const int64_t page = shape.kv_heads * shape.page_tokens * shape.head_dim;
  const int64_t row = shape.heads * shape.head_dim;
  const bool strides = (shape.q_stride == 0 || shape.q_stride >= row) &&
                       (shape.out_stride == 0 || shape.out_stride >= row);
  const bool pages = shape.page_tokens == 0 ||
                     (shape.page_tokens > 0 && shape.ragged && shape.page_stride >= page);
  if (!strides || !pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: rows and pages must not overlap, and only ragged sequences have "
                     "pages: ",
                     shape.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string AttentionShape::ToString() const {
  constexpr const char* kMasks[] = {"none", "causal", "bottom-right"};
  return absl::StrCat("batch ",
                      batch,
                      ", heads ",
                      heads,
                      "/",
                      kv_heads,
                      " of ",
                      head_dim,
                      ", ",
                      queries,
                      " x ",
                      keys,
                      ", mask ",
                      kMasks[static_cast<int>(mask)],
                      ragged ? ", ragged" : "",
                      page_tokens > 0 ? absl::StrCat(", pages of ", page_tokens) : "",
                      q_stride > 0 ? absl::StrCat(", q_stride ", q_stride) : "",
                      out_stride > 0 ? absl::StrCat(", out_stride ", out_stride) : "");
}

AttentionGraph::AttentionGraph(const AttentionShape& shape,
                               std::vector<CudnnDescriptor> parts,
                               CudnnDescriptor graph)
    : shape_(shape), parts_(std::move(parts)), graph_(std::move(graph)) {}

absl::StatusOr<AttentionGraph> AttentionGraph::Build(const std::shared_ptr<const CudnnApi>& api,
                                                     const AttentionShape& shape) {
  if (absl::Status status = Check(shape); !status.ok()) {
    return status;
  }
  Assembly assembly(api, shape);
  assembly.Assemble();
  std::vector<CudnnDescriptor> parts;
  absl::StatusOr<CudnnDescriptor> graph = assembly.Finish(parts);
  if (!graph.ok()) {
    return graph.status();
  }
  return AttentionGraph(shape, std::move(parts), *std::move(graph));
}

}  // namespace baton::kernels::cuda
